//! Devices: one suite for both implementations, and what each has of its own.
//!
//! The CUDA one runs unmodified over a stand-in for the driver (`standin-libcuda`), each test in a
//! process of its own, since an error that stays, stays for the process.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

#[path = "device/compiler.rs"]
mod compiler;
#[path = "device/driver.rs"]
mod driver;
#[path = "device/emulated.rs"]
mod emulated;
#[path = "device/overlap.rs"]
mod overlap;
#[path = "device/rig.rs"]
mod rig;
#[path = "device/standin.rs"]
mod standin;
#[path = "device/suite/mod.rs"]
mod suite;

/// Each function of the suite, for both.
macro_rules! over_both {
    ($($module:ident::$name:ident;)*) => {
        mod emulated_device {
            $(#[test]
            fn $name() {
                super::suite::$module::$name(&super::emulated::Emulated::new());
            })*
        }

        mod cuda_over_a_stand_in {
            $(#[test]
            fn $name() {
                let test = concat!("cuda_over_a_stand_in::", stringify!($name));
                super::standin::in_child(test, &[], |rig| super::suite::$module::$name(rig));
            })*
        }
    };
}

over_both!(
    order::work_of_one_stream_happens_in_its_order;
    order::streams_overtake_each_other_where_no_event_is_between_them;
    order::a_stream_waits_for_an_event_and_the_host_does_not;
    order::work_waits_for_other_work_of_another_stream;
    order::an_event_that_was_never_recorded_has_fired_and_one_recorded_again_has_not;
    order::a_batch_copies_every_piece_and_nothing_around_it;
    order::a_call_of_the_host_comes_after_what_was_queued_before_it;
    order::slots_of_a_small_ring_carry_every_byte_through_two_streams;
    proof::what_work_owns_comes_back_when_its_event_has_fired_and_not_before;
    proof::work_that_is_let_go_of_keeps_its_things_until_it_is_over;
    proof::a_closure_that_panics_frees_nothing_that_it_queued;
    proof::a_closure_that_queues_nothing_gives_everything_back_at_once;
    proof::a_context_with_work_in_flight_ends_within_its_bound;
    proof::a_slot_comes_back_to_its_ring_and_there_are_no_more;
    proof::memory_is_given_back_to_the_driver_when_its_owner_is_dropped;
    kernels::a_kernel_changes_what_it_is_given;
    kernels::a_structure_goes_to_a_kernel_by_value;
    kernels::a_kernel_that_is_not_in_the_code_is_named;
    kernels::a_kernel_of_another_context_is_refused;
    kernels::code_stays_loaded_while_its_kernel_is_queued;
    failures::a_failure_at_any_call_hands_everything_back;
    failures::a_failure_that_stays_at_any_call_ends_this_device_and_no_other;
    failures::streams_that_could_not_be_chained_are_both_waited_for;
    failures::work_whose_event_could_not_be_recorded_is_over_when_its_stream_is_idle;
    failures::an_illegal_access_comes_late_and_is_told_to_everybody_who_shares_the_context;
    failures::what_a_lost_device_may_still_use_is_never_freed;
    failures::a_device_that_the_engine_lost_is_noticed_by_the_next_look;
    failures::too_much_memory_is_refused_with_how_much_was_asked_for;
    failures::a_device_that_is_not_there_is_refused_with_how_many_there_are;
    peers::bytes_go_from_one_device_to_another;
    peers::a_kernel_reaches_another_devices_memory_once_that_was_allowed;
    peers::work_of_two_devices_is_one_piece_with_two_proofs;
);
