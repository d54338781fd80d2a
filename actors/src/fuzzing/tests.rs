//! Every target, fed with what is kept for it; and the seeds of that.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::ids::{ClaimId, ClaimNo, Incarnation, PoolId, RoomKey};
use std::path::{Path, PathBuf};

include!("../../../fuzz/replay.rs");

type Seeds = Vec<(String, Vec<u8>)>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

fn named<const N: usize>(seeds: [(&str, Vec<u8>); N]) -> Seeds {
    seeds.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

macro_rules! targets {
    ($($name:ident, $test:ident;)*) => {$(
        #[test]
        fn $test() {
            seeds(&root(), stringify!($name), kept::$name());
            replay(&root(), stringify!($name), $name);
        }
    )*};
}

targets! {
    address, addresses_that_are_kept_break_nothing;
    companion, companion_files_that_are_kept_break_nothing;
    control_frame, control_frames_that_are_kept_break_nothing;
    coverage, coverage_sets_that_are_kept_break_nothing;
    data_frame, data_frames_that_are_kept_break_nothing;
    data_stream, data_streams_that_are_kept_break_nothing;
    gate_table, gate_tables_that_are_kept_break_nothing;
    greeting, greetings_that_are_kept_break_nothing;
    handshake, handshakes_that_are_kept_break_nothing;
    ring, rings_that_are_kept_break_nothing;
    session, sessions_that_are_kept_break_nothing;
}

/// Each target has a file in `fuzz/`, and each file there a target that a test feeds.
#[test]
fn no_target_is_without_a_test() {
    let here = include_str!("tests.rs");
    let others = [
        "src/cli/fuzzing.rs",
        "src/daemon/fuzzing.rs",
        "src/daemon/config/fuzzing.rs",
        "src/recording/fuzzing.rs",
        "examples/abort_storm/trace_fuzzing.rs",
    ];
    let others = others.map(|path| std::fs::read_to_string(root().join(path)).unwrap());
    let tests = format!("{here}{}", others.concat());
    let mut targets = 0;
    for entry in std::fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let feeds = [
            format!("    {name}, "),
            format!("replay(root, \"{name}\", {name})"),
        ];
        assert!(
            feeds.iter().any(|feed| tests.contains(feed)),
            "no test feeds {name}"
        );
        targets += 1;
    }
    assert!(targets >= 20, "only {targets} targets");
}

#[test]
fn a_target_notices_a_decoder_that_is_wrong() {
    use crate::peer::fuzzing::control_frame_by;
    use crate::peer::message::{Body, Frame};
    use crate::peer::wire::{Bounds, WireError, decode_frame};

    type Decoded = Result<Frame, WireError>;
    let seeds = kept::control_frame();
    let notices = |decode: fn(&[u8], &Bounds) -> Decoded| {
        let found =
            |data: &Vec<u8>| std::panic::catch_unwind(|| control_frame_by(data, decode)).is_err();
        seeds.iter().filter(|(_, data)| found(data)).count()
    };
    assert_eq!(notices(decode_frame), 0, "the shipped one is right");
    // Another number than was sent.
    let every = notices(|data, bounds| {
        decode_frame(data, bounds).map(|frame| Frame {
            seq: frame.seq + 1,
            ..frame
        })
    });
    assert_eq!(every, seeds.len());
    // A field of one message.
    let one = notices(|data, bounds| {
        decode_frame(data, bounds).map(|mut frame| {
            if let Some(Body::Credit { claims }) = &mut frame.body {
                *claims += 1;
            }
            frame
        })
    });
    assert_eq!(one, 1);
    // What is right is refused.
    let refused = notices(|data, bounds| {
        let frame = decode_frame(data, bounds)?;
        match frame.body {
            Some(Body::Ping { .. }) => Err(WireError::Broken),
            _ => Ok(frame),
        }
    });
    assert_eq!(refused, 1);
}

/// What the real encoders give.
mod kept {
    use super::*;
    use crate::fabric::tcp::frame::{
        Ack, Answer, Ask, Data, Fate, Header, Note, Reference, RingName, Trailer,
    };
    use crate::fabric::tcp::fuzzing::step as stream_step;
    use crate::peer::auth::ClusterKey;
    use crate::peer::fuzzing::step as handshake_step;
    use crate::peer::hello::{
        Capabilities, Hello, Host, Link, LinkPool, LinkTable, Offer, Protocols, RefusalCode,
        SessionId, SharedPools,
    };
    use crate::peer::message::{AuxRow, Body, Claim, ClaimTag, Frame, Part, Section, Trace};
    use crate::peer::wire::{self, DataHello, Greeting, Verdict};
    use crate::reason::{Code, Reason};
    use kvroom_kernels::coverage::Coverage;
    use kvroom_kernels::layout::cube::{
        CubeKind, CubeLayout, DimOrder, Dtype, Plane as CubePlane, Share, Span,
    };
    use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
    use kvroom_kernels::plan::cube::Part as CubePart;

    fn life(n: u64) -> Incarnation {
        Incarnation {
            started_ns: n,
            nonce: n,
        }
    }

    fn tag() -> ClaimTag {
        ClaimTag {
            id: ClaimId {
                receiver: life(2),
                sender: life(1),
                number: ClaimNo(7),
            },
            room: RoomKey::new(42, 1),
        }
    }

    /// Heads 1..3 of 4, and scales of them.
    fn content() -> CubeLayout {
        let plane = CubePlane {
            heads: Share::part(4, 1, 2),
            channels: 2,
            dtype: Dtype::fp8_e4m3(),
        };
        CubeLayout {
            name: "scales".into(),
            kind: CubeKind::Scale { of: "kv".into() },
            layers: Share::part(9, 3, 2),
            planes: vec![plane; 2],
            page_tokens: 4,
            granule: 1,
            pages: 3,
            page_gap: 0,
            order: DimOrder::NHD,
        }
    }

    fn layout() -> PoolLayout {
        PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: 2,
            pages: 3,
            page_bytes: 4,
            page_tokens: 5,
        }
    }

    fn cells() -> Coverage {
        let mut cells = Coverage::new();
        cells.insert(0, 0..2, 0..8).unwrap();
        cells.insert(0, 0..3, 10..16).unwrap();
        cells.insert(1, 1..2, 3..4).unwrap();
        cells
    }

    fn bodies() -> Vec<Body> {
        let (tag, reason) = (tag(), Reason::new(Code::Stalled, "nothing came"));
        let claim = Claim {
            tag,
            receivers: 2,
            rank: 1,
            part: Part::Layers { first: 1, end: 2 },
            sections: vec![
                Section {
                    pool: PoolId(0),
                    pages: vec![1, 0, 2],
                },
                Section {
                    pool: PoolId(1),
                    pages: vec![],
                },
            ],
            skip: 5,
            total: 20,
            aux: Some(AuxRow {
                pool: PoolId(2),
                row: 3,
            }),
            gate: 4,
            deadline_ms: 1000,
            checksum: true,
            trace: Some(Trace {
                trace_id: 1,
                span_id: 2,
            }),
        };
        vec![
            Body::Claim(Box::new(claim)),
            Body::Bound { tag },
            Body::Progress {
                tag,
                posted: 2,
                written: 1,
            },
            Body::Complete {
                tag,
                total: 20,
                coverage: cells(),
                checksum: Some(9),
            },
            Body::Accepted { tag },
            Body::Rejected {
                tag,
                reason: reason.clone(),
            },
            Body::Failed {
                tag,
                reason: reason.clone(),
            },
            Body::Abort {
                tag,
                reason: reason.clone(),
            },
            Body::Quiesced {
                tag,
                landed: cells(),
            },
            Body::Credit { claims: 4 },
            Body::PoolAdded {
                pool: PoolId(3),
                layout: content().pool_layout().unwrap(),
                content: Some(Box::new(content())),
                far: None,
            },
            Body::PoolRetired { pool: PoolId(3) },
            Body::Ping { nonce: 5 },
            Body::Pong { nonce: 5 },
            Body::Bye { drained: true },
            Body::Superseded,
            Body::GaveUp { reason },
        ]
    }

    fn payload(body: Option<Body>) -> Vec<u8> {
        let mut out = Vec::new();
        let frame = Frame {
            seq: 1,
            ack: 0,
            body,
        };
        wire::encode_frame(&frame, &mut out, wire::MAX).unwrap();
        out.split_off(wire::PREFIX)
    }

    pub(super) fn control_frame() -> Seeds {
        let mut seeds = named([("ack", payload(None))]);
        seeds.extend(bodies().into_iter().map(|body| {
            let name = body.name().to_lowercase();
            (name, payload(Some(body)))
        }));
        if let Some(Body::Claim(mut claim)) = bodies().into_iter().next() {
            let part = CubePart {
                layers: Span::new(3, 5),
                heads: vec![Span::new(1, 2), Span::new(0, 0)],
            };
            claim.part = Part::Slices(vec![Some(part), None]);
            seeds.push(("slices".into(), payload(Some(Body::Claim(claim)))));
        }
        seeds
    }

    pub(super) fn greeting() -> Seeds {
        let first = |message: Greeting| {
            let mut out = Vec::new();
            wire::encode_first_greeting(&message, &mut out).unwrap();
            out.split_off(wire::PREFIX)
        };
        let later = |message: Greeting| {
            let mut out = Vec::new();
            wire::encode_greeting(&message, &mut out).unwrap();
            out.split_off(wire::PREFIX)
        };
        let hello = Hello {
            protocols: Protocols::MINE,
            node: "decode-0".into(),
            incarnation: life(5),
            nonce: [7; 32],
            capabilities: Capabilities::QUIESCENCE,
            keyed: true,
        };
        let session = SessionId {
            lower: 1,
            higher: 2,
        };
        let offer = Offer {
            pools: vec![
                (PoolId(0), layout()),
                (PoolId(1), content().pool_layout().unwrap()),
            ],
            contents: vec![(PoolId(1), content())],
            credit: 8,
            resume: Some(session),
            received: 9,
            token: 10,
            host: Some(Host {
                boot: [1; 16],
                socket: Some("kvroom-5".into()),
                shared: SharedPools::All,
            }),
            ucx: None,
        };
        let link = Link {
            willing: true,
            table: Some(LinkTable {
                slots: 64,
                file: false,
            }),
            ring: true,
            pools: vec![LinkPool {
                pool: PoolId(0),
                file: true,
            }],
        };
        let key = ClusterKey::new([7; 16]).unwrap();
        let class = crate::copy::schedule::Class::Bulk;
        let data = DataHello::new(77, (class, 1), 2, Some(&key));
        let refused = Verdict::Refused {
            code: RefusalCode::Busy,
            text: "no room".into(),
        };
        named([
            ("hello", first(Greeting::Hello(hello))),
            ("data", first(Greeting::Data(data))),
            ("mac", later(Greeting::Mac([3; 32]))),
            ("offer", later(Greeting::Offer(offer))),
            ("link", later(Greeting::Link(link))),
            (
                "accept",
                later(Greeting::Verdict(Verdict::Accept { session })),
            ),
            ("refused", later(Greeting::Verdict(refused))),
            ("go", later(Greeting::Verdict(Verdict::Go))),
            ("crossed", later(Greeting::Verdict(Verdict::Crossed))),
        ])
    }

    pub(super) fn coverage() -> Seeds {
        // Behind the numbers, the kind and the tag.
        let of =
            |landed: Coverage| payload(Some(Body::Quiesced { tag: tag(), landed })).split_off(73);
        let with = |a: Vec<u8>, b: Vec<u8>| {
            let len = |x: &[u8]| (x.len() as u16).to_le_bytes();
            [&len(&a)[..], &a, &len(&b), &b, &[0; 10]].concat()
        };
        let mut other = Coverage::new();
        other.insert(0, 2..3, 0..8).unwrap();
        named([
            ("apart", with(of(cells()), of(other))),
            ("same", with(of(cells()), of(cells()))),
            ("empty", with(of(Coverage::new()), of(cells()))),
        ])
    }

    pub(super) fn handshake() -> Seeds {
        let genuine = [handshake_step::GENUINE; 6];
        let mut seeds = Vec::new();
        // With and without a key; either life; either role; a session to resume; crossed.
        for setup in [0, 1, 2, 3, 4, 5, 6, 7, 0x58, 0x5D, 0x83, 0x24] {
            let name = format!("whole-{setup:02x}");
            seeds.push((name, [&[setup][..], &genuine].concat()));
        }
        let damaged = [1, handshake_step::GENUINE, handshake_step::DAMAGED, 9, 0, 1];
        let cut = [
            5,
            handshake_step::CUT,
            5,
            0,
            handshake_step::CUT,
            2,
            0,
            0,
            0,
        ];
        let calls = [4, handshake_step::CALL, 2, 0, handshake_step::CALL, 2];
        let data = &greeting()[1].1[4..];
        let first = [
            &[0, handshake_step::FIRST][..],
            &(data.len() as u16).to_le_bytes(),
            data,
        ];
        seeds.extend(named([
            ("damaged", damaged.into()),
            ("cut", cut.into()),
            ("calls", calls.into()),
            (
                "raw",
                vec![0, handshake_step::RAW, 4, b'G', b'E', b'T', b' '],
            ),
            ("data", first.concat()),
            ("framed", vec![6, 0, handshake_step::FRAMED, 3, 0, 1, 2, 3]),
        ]));
        seeds
    }

    pub(super) fn session() -> Seeds {
        let claim = payload(Some(bodies().remove(0)));
        let raw = [&[130][..], &(claim.len() as u16).to_le_bytes(), &claim];
        named([
            // A claim, its abort, and an acknowledgement.
            (
                "claim",
                vec![1, 2, 1, 1, 0, 3, 0, 1, 2, 0, 12, 0xFF, 10, 2, 1, 0xFF, 163],
            ),
            // Claims out, a reset, and again.
            (
                "resume",
                vec![160, 0, 0, 0, 160, 0, 0, 0, 163, 7, 166, 1, 163, 7, 161, 2],
            ),
            ("decoded", raw.concat()),
            (
                "credit",
                vec![12, 3, 0, 0, 0, 0xFF, 162, 163, 4, 167, 2, 163, 4],
            ),
            // One claim more than it may have.
            (
                "greedy",
                (1..=5).flat_map(|n| [1, 2, n, 20, 0, 4, 0xFF]).collect(),
            ),
            ("probes", vec![15, 1, 0, 0, 0, 0, 0, 0, 0, 0xF8, 163, 4]),
            ("lie", vec![4, 7, 1, 0, 9, 9, 9, 9, 9, 9, 9, 9]),
        ])
    }

    fn frame() -> Data {
        Data {
            seq: 1,
            claim: ClaimNo(7),
            gate: 0,
            section: 0,
            layers: 0..2,
            places: 0..3,
            position: 200,
            length: 400,
            crc: true,
            sliced: false,
            handed: false,
        }
    }

    fn handed() -> Data {
        Data {
            crc: false,
            handed: true,
            position: 0,
            ..frame()
        }
    }

    fn notes() -> [Note; 2] {
        let (pool, ring) = ("kv".to_owned(), 3);
        let ask = Ask {
            ring: RingName {
                number: ring,
                kind: 1,
                uuid: [9; 16],
                bytes: 1 << 20,
                handle: [7; 64],
            },
            pool: pool.clone(),
        };
        let no = Some("it is not on a device".into());
        [Note::Ask(ask), Note::Answer(Answer { ring, pool, no })]
    }

    pub(super) fn data_frame() -> Seeds {
        let claim = [
            &[0][..],
            &2u32.to_le_bytes(),
            &3u32.to_le_bytes(),
            &200u64.to_le_bytes(),
            &10u32.to_le_bytes(),
        ]
        .concat();
        let trailer = Trailer {
            valid: true,
            crc: 5,
        };
        let end = [&trailer.encode(1)[..], &1u64.to_le_bytes()].concat();
        let ack = Ack {
            first: 1,
            last: 9,
            fate: Fate::Landed,
        };
        let mut outside = claim.clone();
        outside[1] = 1; // One layer.
        let sliced = Data {
            position: 0,
            sliced: true,
            ..frame()
        };
        // Three places from 0 on, 25 channels, pages of 3, tokens 0..8, layers 0..2, head 1.
        let slice = [3, 0, 0, 0, 0, 24, 0, 2, 0, 8, 0, 0, 2, 1, 2];
        named([
            (
                "sliced",
                [&[1][..], &sliced.encode(), &slice, &end].concat(),
            ),
            ("data", [&[1][..], &frame().encode(), &claim, &end].concat()),
            (
                "outside",
                [&[1][..], &frame().encode(), &outside, &end].concat(),
            ),
            ("ack", [&[0][..], &ack.encode(), &end].concat()),
            ("ask", [&[0][..], &notes()[0].encode(), &end].concat()),
            ("answer", [&[0][..], &notes()[1].encode(), &end].concat()),
            (
                "handed",
                [&[1][..], &handed().encode(), &claim, &end].concat(),
            ),
            ("alive", [&[0][..], &Header::alive(), &end].concat()),
        ])
    }

    pub(super) fn data_stream() -> Seeds {
        // Claim, layer, place, layer's end, place's end, first cell, cells, how, contents; a cut.
        let whole = [stream_step::FRAME, 0, 0, 0, 1, 2, 0, 5, 0, 9, 0];
        let summed = [stream_step::FRAME, 1, 1, 0, 1, 0, 0, 0, 1, 7, 30];
        let void = [stream_step::FRAME, 0, 0, 1, 0, 1, 1, 0, 2, 3, 200];
        let close = [stream_step::CLOSE, 0];
        let late = [stream_step::FRAME, 0, 0, 0, 0, 0, 0, 0, 0, 1, 255];
        // Layer, place, layer's end, place's end, how, contents; a cut.
        let slices = [stream_step::SLICES, 0, 0, 1, 1, 1, 6, 90];
        let last = [stream_step::SLICES, 1, 1, 1, 1, 0, 7, 2];
        let start = [1, 0];
        let header = [&[1, 64][..], &frame().encode(), &[stream_step::ALIVE, 9]].concat();
        // Notes, and a handed frame of a claim that has ended, whose reference leads nowhere.
        let raw = |bytes: &[u8]| {
            let pieces = bytes.chunks(200).flat_map(|piece| {
                [&[stream_step::RAW, piece.len() as u8][..], piece, &[7]].concat()
            });
            pieces.collect::<Vec<u8>>()
        };
        let reference = Reference { ring: 3, offset: 0 };
        let gone = Data {
            claim: ClaimNo(5),
            ..handed()
        };
        let valid = Trailer {
            valid: true,
            crc: 0,
        };
        let gone = [
            &gone.encode()[..],
            &reference.encode(1),
            &valid.encode(1),
            &handed().encode(),
        ];
        let notes = notes().map(|note| raw(&note.encode())).concat();
        named([
            ("whole", [&start[..], &whole, &summed, &void].concat()),
            (
                "closed",
                [&start[..], &whole, &close, &late, &summed].concat(),
            ),
            ("ahead", header),
            (
                "handed",
                [&start[..], &notes, &raw(&gone.concat())].concat(),
            ),
            ("slices", [&start[..], &slices, &whole, &last].concat()),
            (
                "header",
                vec![
                    0,
                    0,
                    stream_step::HEADER,
                    0,
                    0,
                    1,
                    0,
                    1,
                    16,
                    0,
                    4,
                    0,
                    1,
                    2,
                    3,
                    4,
                    20,
                ],
            ),
            // A layer that the claim does not offer.
            (
                "layer",
                [
                    &[0, 0, stream_step::HEADER, 0, 2, 3, 0, 1, 16, 0, 16, 0][..],
                    &[9; 16],
                    &[255],
                ]
                .concat(),
            ),
            (
                "others",
                vec![2, 0, stream_step::ALIVE, 0, stream_step::RAW, 3, 1, 2, 3, 0],
            ),
        ])
    }

    pub(super) fn ring() -> Seeds {
        named([
            (
                "read",
                vec![0, 100, 0, 6, 40, 0, 6, 0, 1, 9, 1, 0, 5, 0, 6, 3, 0],
            ),
            (
                "write",
                vec![8, 0, 1, 2, 0, 1, 8, 0xFF, 0xFF, 8, 0, 1, 2, 9, 0, 8, 1, 0],
            ),
            (
                "bytes",
                vec![4, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 8, 0, 6, 8, 0],
            ),
            (
                "backwards",
                vec![0, 100, 0, 6, 9, 0, 1, 50, 0, 0, 0, 0, 0, 0, 0, 6, 9, 0],
            ),
            (
                "back",
                vec![0, 100, 0, 6, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 6, 9, 0],
            ),
            ("far", vec![1, 1, 0, 5, 0, 0, 0, 0, 0, 6, 9, 0]),
        ])
    }

    pub(super) fn gate_table() -> Seeds {
        let header = [
            &b"kvroomGT"[..],
            &1u32.to_le_bytes(),
            &15u32.to_le_bytes(),
            &[0; 48],
            &(5u64 | 1 << 48).to_le_bytes(),
        ];
        let header = [&[0, 0xFF, 3][..], &header.concat()].concat();
        named([
            ("header", header),
            // Opened, entered by the writer, closed, left, finished.
            (
                "owner",
                vec![
                    1,
                    0,
                    1,
                    0,
                    2,
                    1,
                    0,
                    2,
                    0,
                    3,
                    0,
                    1,
                    0,
                    1 | 0x80,
                    5,
                    3,
                    0,
                    0,
                    4,
                    0,
                ],
            ),
            // Entered; the owner says that nobody is; left.
            (
                "emptied",
                vec![2, 0, 5, 0, 2, 0, 0, 1, 0, 5, 0, 5, 0, 2, 0, 0, 2, 0],
            ),
            (
                "taken",
                vec![1, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 5],
            ),
            ("writer", vec![2, 0, 5, 0, 2, 0, 0, 1, 0, 5, 2, 0, 1, 4, 5]),
        ])
    }

    pub(super) fn companion() -> Seeds {
        named([
            ("none", vec![1]),
            ("fresh", vec![0]),
            ("inside", vec![4]),
            ("left", vec![12]),
            ("cut", vec![2, 0, 0x30]),
            // An owner and a table that this very process has.
            ("alive", vec![0, 3, 0, 0, 36, 0, 5, 1, 0, 0, 0, 0, 10, 2, 5]),
            ("other", vec![4, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]),
            ("version", vec![4, 8, 1, 9]),
        ])
    }

    pub(super) fn address() -> Seeds {
        named([
            ("tcp", b"tcp://decode-0:7400".into()),
            ("six", b"tcp://[fe80::1]:0".into()),
            ("unix", b"unix:///run/kvroom/a".into()),
            ("local", b"local://prefill-0".into()),
        ])
    }
}
