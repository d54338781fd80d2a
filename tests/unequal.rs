//! Rooms between ranks that hold different parts of the model: every byte where it belongs, and no other
//! one touched; or a refusal that says who lacks what.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "../examples/unequal_ranks/cube.rs"]
mod cube;

use common::*;
use kvroom::actors::copy::plant::Brake;
use kvroom::layout::{
    CubeKind, CubeLayout, DimOrder, Dtype, Part, Plane, Routes, Share, Span, routes,
};
use kvroom::{
    Chunk, Code, LocalHub, Node, Outcome, Peer, Pool, PoolError, ReadLease, ReceiveRoom, RoomId,
    SendRoom, StartErrorKind, WriteLease,
};
use std::ops::Range;

over_fabrics!(
    four_ranks_send_to_two_and_two_to_four,
    heads_that_ranks_share_are_sent_by_one_of_them,
    three_ranks_send_to_two_so_that_one_serves_both,
    stages_and_heads_may_be_cut_differently_at_once,
    pages_may_be_of_other_sizes_on_both_sides,
    a_prefix_that_decode_has_is_not_sent,
    layers_may_be_pushed_one_by_one,
    a_latent_and_its_index_keys_go_to_each_rank,
    scales_go_with_their_data,
    states_go_by_their_segments,
    the_aux_row_comes_with_the_rank_that_has_it,
    sums_agree_where_two_ranks_write_one_cell,
    every_byte_is_right_over_a_long_run_with_aborts_between_unequal_ranks,
    a_list_that_is_not_as_long_as_its_tokens_is_refused_on_both_sides,
    a_pool_that_is_added_later_says_what_it_holds,
    a_chunk_of_whole_turns_of_a_lane_is_copied_and_summed_to_its_end,
    an_abort_in_the_middle_of_one_leg_ends_all_and_gives_everything_back,
    a_chunk_that_is_cut_inside_a_page_of_the_receiver_ends_the_room,
    a_request_of_another_length_ends_both_sides,
    a_sender_that_lacks_a_head_refuses_and_names_it,
    whole_cells_of_other_heads_are_refused,
);

// A lane is held there, which is in the sender's process where it copies from page to page.
over_copies!(a_lane_inside_the_gate_of_one_leg_keeps_the_pages_of_all_until_it_is_out);

/// Layers of every model here.
const LAYERS: u32 = 4;

fn plane(heads: Share, channels: u32, dtype: Dtype) -> Plane {
    Plane {
        heads,
        channels,
        dtype,
    }
}

fn cube(name: &str, kind: CubeKind, layers: Share, planes: Vec<Plane>) -> CubeLayout {
    CubeLayout {
        name: name.into(),
        kind,
        layers,
        planes,
        page_tokens: 16,
        granule: 1,
        pages: 16,
        page_gap: 0,
        order: DimOrder::NHD,
    }
}

/// Keys and values of one rank of a side.
fn kv(heads: u32, rank: u32, ranks: u32) -> CubeLayout {
    let heads = Share::of_rank(heads, rank, ranks).unwrap();
    let planes = vec![plane(heads, 8, Dtype::bf16()); 2];
    cube("kv", CubeKind::Kv, Share::whole(LAYERS), planes)
}

/// All ranks of a side, with one pool each.
fn side(heads: u32, ranks: u32, order: DimOrder) -> Vec<Vec<CubeLayout>> {
    (0..ranks)
        .map(|rank| {
            let cube = kv(heads, rank, ranks);
            vec![CubeLayout { order, ..cube }]
        })
        .collect()
}

struct Rank {
    node: Node,
    pools: Vec<Pool>,
    set: Vec<CubeLayout>,
    address: String,
    /// Holds its lanes inside gates.
    brake: Brake,
}

impl Rank {
    async fn start(over: Over, hub: &LocalHub, name: String, set: &[CubeLayout]) -> Rank {
        let mut builder = Node::builder(&name);
        builder = match over {
            Over::Local | Over::Device => builder.hub(hub),
            Over::Tcp | Over::DeviceTcp => builder.listen("tcp://127.0.0.1:0"),
            Over::Ucx => (builder.listen("tcp://127.0.0.1:0")).ucx(common::ucx_options()),
            _ => builder.listen(&format!("unix://{}", socket_path().display())),
        };
        let mut pools = Vec::new();
        for content in set {
            let cells = content.pool_layout().unwrap();
            let pool = over.pool(cells).with_content(content.clone()).unwrap();
            builder = builder.pool(pool.clone());
            pools.push(pool);
        }
        let brake = Brake::default();
        let of_lanes = brake.clone();
        let node = builder.lanes(2);
        let node = node.configure(move |config| config.brake = Some(of_lanes));
        let node = node.start().await.unwrap();
        let address = match node.addresses().first() {
            Some(address) => address.clone(),
            None => format!("local://{name}"),
        };
        Rank {
            node,
            pools,
            set: set.to_vec(),
            address,
            brake,
        }
    }

    /// Pages of a pool for these tokens, from the end on, so that neighbours are not in order.
    fn lease(&self, at: usize, tokens: &Range<u64>) -> WriteLease {
        let (pool, of) = (&self.pools[at], &self.set[at]);
        let count = cube::pages_of(of, tokens);
        let order = (0..of.pages).rev();
        let free = order.filter(|page| pool.lease_write(&[*page]).is_ok());
        let pages: Vec<u32> = free.take(count as usize).collect();
        pool.lease_write(&pages).unwrap()
    }

    async fn quiet(&self) {
        assert_quiet(&self.node).await;
        for pool in &self.pools {
            all_free(pool).await;
        }
    }
}

/// Two sides, each rank of decode connected to each of prefill.
struct World {
    prefill: Vec<Rank>,
    decode: Vec<Rank>,
    peers: Vec<Vec<Peer>>,
    total: u64,
    skip: u64,
    /// Tokens of a chunk.
    chunk: u64,
    /// Layers of a chunk; all, if 0.
    layers: u32,
    turn: u64,
    checksum: bool,
}

impl World {
    async fn new(over: Over, prefill: Vec<Vec<CubeLayout>>, decode: Vec<Vec<CubeLayout>>) -> World {
        let hub = LocalHub::new();
        let (mut senders, mut receivers, mut peers) = (Vec::new(), Vec::new(), Vec::new());
        for (i, set) in prefill.iter().enumerate() {
            senders.push(Rank::start(over, &hub, format!("p{i}"), set).await);
        }
        for (i, set) in decode.iter().enumerate() {
            let rank = Rank::start(over, &hub, format!("d{i}"), set).await;
            let mut all = Vec::new();
            for sender in &senders {
                all.push(within(rank.node.connect(&sender.address)).await.unwrap());
            }
            receivers.push(rank);
            peers.push(all);
        }
        World {
            prefill: senders,
            decode: receivers,
            peers,
            total: 75,
            skip: 0,
            chunk: 32,
            layers: 0,
            turn: 0,
            checksum: false,
        }
    }

    fn sets(ranks: &[Rank]) -> Vec<Vec<CubeLayout>> {
        ranks.iter().map(|rank| rank.set.clone()).collect()
    }

    fn routes(&self) -> Routes {
        let (prefill, decode) = (World::sets(&self.prefill), World::sets(&self.decode));
        routes(&prefill, &decode, self.turn).unwrap()
    }

    async fn receive(&self, id: u64, me: usize) -> ReceiveRoom {
        let rank = &self.decode[me];
        let peers: Vec<&Peer> = self.peers[me].iter().collect();
        let mut room = rank.node.receive(RoomId(id)).from_ranks(&peers, self.turn);
        room = room
            .ranks(&World::sets(&self.decode), me)
            .skip(self.skip)
            .total(self.total)
            .checksum(self.checksum);
        let tokens = self.skip..self.total;
        for at in 0..rank.pools.len() {
            let mut lease = rank.lease(at, &tokens);
            cube::clear(&mut lease);
            room = match rank.set[at].kind {
                CubeKind::Aux => room.aux(lease),
                _ => room.into(lease),
            };
        }
        within(room.start()).await.unwrap()
    }

    /// The sender's room, if it has legs.
    async fn send(&self, id: u64, me: usize) -> Option<SendRoom> {
        let legs = self.routes().from(me).count() as u16;
        let room = self.prefill[me]
            .node
            .send(RoomId(id))
            .receivers(legs.max(1));
        match legs {
            0 => None,
            _ => Some(within(room.start()).await.unwrap()),
        }
    }

    /// Pushes what a rank has of these tokens.
    async fn push(&self, room: &SendRoom, me: usize, tokens: Range<u64>) {
        let rank = &self.prefill[me];
        for at in 0..rank.pools.len() {
            let of = &rank.set[at];
            if of.kind.is_row() {
                continue;
            }
            let mut lease = rank.lease(at, &tokens);
            cube::fill(&mut lease, of, &tokens);
            let lease = lease.into_read();
            let (pool_layers, pages) = (lease.pool().layout().layers, lease.pages().to_vec());
            let pool = &rank.pools[at];
            if self.layers == 0 {
                let chunk = Chunk::tokens(tokens.clone()).pages(lease);
                within(room.reserve()).await.unwrap().push(chunk).unwrap();
                continue;
            }
            for first in (0..pool_layers).step_by(self.layers as usize) {
                let layers = first..(first + self.layers).min(pool_layers);
                let lease = pool.lease_read(&pages).unwrap();
                let chunk = Chunk::tokens(tokens.clone()).layers(layers).pages(lease);
                within(room.reserve()).await.unwrap().push(chunk).unwrap();
            }
        }
    }

    /// The same to a room that may be over, of ranks with one pool.
    async fn try_push(&self, room: &SendRoom, me: usize, tokens: Range<u64>) {
        let rank = &self.prefill[me];
        let mut lease = rank.lease(0, &tokens);
        cube::fill(&mut lease, &rank.set[0], &tokens);
        if let Ok(slot) = within(room.reserve()).await {
            let _ = slot.push(Chunk::tokens(tokens).pages(lease.into_read()));
        }
    }

    /// Pushes rows of states, and gives the aux row.
    async fn rows(&self, room: &SendRoom, me: usize) -> Option<ReadLease> {
        let rank = &self.prefill[me];
        let mut aux = None;
        for at in 0..rank.pools.len() {
            let of = &rank.set[at];
            if !of.kind.is_row() {
                continue;
            }
            let mut lease = rank.lease(at, &(0..1));
            cube::fill(&mut lease, of, &(0..1));
            match of.kind {
                CubeKind::Aux => aux = Some(lease.into_read()),
                _ => {
                    let row = Chunk::row(lease.into_read());
                    within(room.reserve()).await.unwrap().push(row).unwrap();
                }
            }
        }
        aux
    }

    /// Moves one request, and looks at every byte of all destinations.
    async fn moves(&self, id: u64) {
        let mut receivers = Vec::new();
        for me in 0..self.decode.len() {
            receivers.push(self.receive(id, me).await);
        }
        let mut senders = Vec::new();
        for me in 0..self.prefill.len() {
            let Some(room) = self.send(id, me).await else {
                continue;
            };
            let mut at = 0;
            while at < self.total {
                let end = (at + self.chunk).min(self.total);
                self.push(&room, me, at..end).await;
                at = end;
            }
            let aux = self.rows(&room, me).await;
            room.finish(self.total, aux).unwrap();
            senders.push(room);
        }
        for (me, room) in receivers.iter().enumerate() {
            let outcome = within(room.outcome()).await;
            assert_eq!(outcome, Outcome::Done, "decode rank {me}");
            let back = within(room.released()).await;
            let (leases, aux) = (back.leases, back.aux);
            let tokens = self.skip..self.total;
            for lease in leases.iter().chain(&aux) {
                let name = &lease.pool().layout().name;
                let mut set = self.decode[me].set.iter();
                let of = set.find(|of| of.name == *name).unwrap();
                let right = cube::check(lease, of, &tokens);
                assert!(right.is_ok(), "decode rank {me}: {right:?}");
            }
        }
        for room in &senders {
            assert_eq!(within(room.outcome()).await, Outcome::Done);
            drop(within(room.released()).await);
        }
    }

    async fn end(self) {
        for rank in self.decode.iter().chain(&self.prefill) {
            rank.quiet().await;
        }
        for rank in self.decode.iter().chain(&self.prefill) {
            within(rank.node.shutdown()).await;
        }
    }
}

async fn moves(over: Over, prefill: Vec<Vec<CubeLayout>>, decode: Vec<Vec<CubeLayout>>) {
    let world = World::new(over, prefill, decode).await;
    world.moves(1).await;
    world.end().await;
}

async fn four_ranks_send_to_two_and_two_to_four(over: Over) {
    let orders = [
        (DimOrder::NHD, DimOrder::HND),
        (DimOrder::PAGES_NHD, DimOrder::SPLIT_NHD),
        (DimOrder::PLANES_NHD, DimOrder::NHD),
    ];
    for (here, there) in orders {
        moves(over, side(8, 4, here), side(8, 2, there)).await;
        moves(over, side(8, 2, here), side(8, 4, there)).await;
    }
}

async fn heads_that_ranks_share_are_sent_by_one_of_them(over: Over) {
    let (prefill, decode) = (side(2, 4, DimOrder::NHD), side(2, 2, DimOrder::NHD));
    let mut world = World::new(over, prefill, decode).await;
    let mut silent = Vec::new();
    for turn in 0..2 {
        world.turn = turn;
        silent.push(world.routes().silent);
        world.moves(turn).await;
    }
    assert_eq!(silent, [[1, 3], [0, 2]]);
    world.end().await;
    moves(over, side(2, 2, DimOrder::NHD), side(2, 8, DimOrder::NHD)).await;
}

async fn three_ranks_send_to_two_so_that_one_serves_both(over: Over) {
    let world = World::new(over, side(6, 3, DimOrder::NHD), side(6, 2, DimOrder::NHD)).await;
    let plan = world.routes();
    let legs: Vec<usize> = (0..3).map(|s| plan.from(s).count()).collect();
    assert_eq!(legs, [1, 2, 1]);
    world.moves(1).await;
    world.end().await;
}

/// A rank of a stage, which has these layers.
fn staged(layers: Range<u32>, cube: CubeLayout) -> CubeLayout {
    let held = layers.end - layers.start;
    CubeLayout {
        layers: Share::part(LAYERS, layers.start, held),
        ..cube
    }
}

async fn stages_and_heads_may_be_cut_differently_at_once(over: Over) {
    let stages = |stages: &[Range<u32>], ranks: u32| {
        let mut all = Vec::new();
        for layers in stages {
            all.extend((0..ranks).map(|rank| vec![staged(layers.clone(), kv(8, rank, ranks))]));
        }
        all
    };
    // Two uneven stages of two ranks each, to one stage of four.
    let whole = std::slice::from_ref(&(0..4));
    moves(over, stages(&[0..1, 1..4], 2), stages(whole, 4)).await;
    moves(over, stages(whole, 4), stages(&[0..3, 3..4], 1)).await;
}

async fn pages_may_be_of_other_sizes_on_both_sides(over: Over) {
    let sized = |ranks, page_tokens| {
        let mut side = side(4, ranks, DimOrder::NHD);
        for cube in side.iter_mut().flatten() {
            cube.page_tokens = page_tokens;
        }
        side
    };
    moves(over, sized(2, 16), sized(1, 32)).await;
    moves(over, sized(1, 32), sized(2, 16)).await;
    moves(over, sized(1, 8), sized(1, 32)).await;
}

async fn a_prefix_that_decode_has_is_not_sent(over: Over) {
    let mut large = side(4, 2, DimOrder::NHD);
    for cube in large.iter_mut().flatten() {
        cube.page_tokens = 32;
    }
    let small = side(4, 1, DimOrder::HND);
    for (prefill, decode, skip) in [
        (large.clone(), small.clone(), 16),
        (large.clone(), small.clone(), 48),
        (small, large, 32),
    ] {
        let mut world = World::new(over, prefill, decode).await;
        world.skip = skip;
        world.moves(skip).await;
        world.end().await;
    }
}

async fn layers_may_be_pushed_one_by_one(over: Over) {
    for order in [DimOrder::NHD, DimOrder::PAGES_HND, DimOrder::SPLIT_NHD] {
        let mut world = World::new(over, side(8, 4, order), side(8, 2, DimOrder::HND)).await;
        // Where planes lie apart, the pool has two layers for each of the model's.
        world.layers = if order == DimOrder::SPLIT_NHD { 2 } else { 1 };
        world.moves(1).await;
        world.end().await;
    }
    // The second stage's first layer is the source's fourth.
    let stages = [0..3, 3..4].map(|layers| vec![staged(layers, kv(8, 0, 1))]);
    let mut world = World::new(over, side(8, 2, DimOrder::NHD), stages.into()).await;
    world.layers = 1;
    world.moves(1).await;
    world.end().await;
}

/// One head, which each rank has whole.
fn headless(name: &str, kind: CubeKind, planes: &[(u32, Dtype)]) -> CubeLayout {
    let planes = planes.iter();
    let planes = planes.map(|(channels, dtype)| plane(Share::whole(1), *channels, dtype.clone()));
    cube(name, kind, Share::whole(LAYERS), planes.collect())
}

async fn a_latent_and_its_index_keys_go_to_each_rank(over: Over) {
    let rank = |order| {
        let f32 = Dtype::new("f32", 32);
        let keys = [(16, Dtype::fp8_e4m3()), (1, f32)];
        let mut set = vec![
            headless("latent", CubeKind::Latent, &[(20, Dtype::bf16())]),
            headless("index", CubeKind::IndexK, &keys),
        ];
        for cube in &mut set {
            cube.order = order;
        }
        set
    };
    let sides = (
        vec![rank(DimOrder::NHD); 2],
        vec![rank(DimOrder::PAGES_NHD); 4],
    );
    moves(over, sides.0, sides.1).await;
}

async fn scales_go_with_their_data(over: Over) {
    let ranks = |ranks: u32, order: DimOrder| {
        let rank = |rank| {
            let heads = Share::of_rank(4, rank, ranks).unwrap();
            let of = "kv".to_owned();
            let layers = Share::whole(LAYERS);
            let data = vec![plane(heads, 32, Dtype::fp4_e2m1()); 2];
            let scales = vec![plane(heads, 2, Dtype::fp8_e4m3()); 2];
            let mut set = vec![
                cube("kv", CubeKind::Kv, layers, data),
                cube("scales", CubeKind::Scale { of }, layers, scales),
            ];
            set[0].order = order;
            set
        };
        (0..ranks).map(rank).collect::<Vec<_>>()
    };
    moves(over, ranks(4, DimOrder::NHD), ranks(2, DimOrder::HND)).await;
    moves(over, ranks(1, DimOrder::NHD), ranks(4, DimOrder::NHD)).await;
}

/// Keys and values, and for other layers a convolution state `[x | B | C]` and an SSM state.
fn hybrid(ranks: u32) -> Vec<Vec<CubeLayout>> {
    let rank = |rank| {
        let heads = |total| Share::of_rank(total, rank, ranks).unwrap();
        let byte = Dtype::fp8_e4m3;
        let (x, group) = (heads(8), heads(2));
        let conv = vec![
            plane(x, 3, byte()),
            plane(group, 2, byte()),
            plane(group, 2, byte()),
        ];
        let ssm = vec![plane(x, 5, Dtype::bf16())];
        let layers = Share::whole(LAYERS + 1);
        let mut conv = cube("conv", CubeKind::State, layers, conv);
        conv.page_tokens = 3;
        let mut ssm = cube("ssm", CubeKind::State, layers, ssm);
        ssm.page_tokens = 1;
        vec![kv(4, rank, ranks), conv, ssm]
    };
    (0..ranks).map(rank).collect()
}

async fn states_go_by_their_segments(over: Over) {
    moves(over, hybrid(4), hybrid(2)).await;
    moves(over, hybrid(2), hybrid(4)).await;
}

async fn the_aux_row_comes_with_the_rank_that_has_it(over: Over) {
    let aux = || {
        let row = vec![plane(Share::whole(1), 7, Dtype::new("bytes", 8))];
        let mut aux = cube("aux", CubeKind::Aux, Share::whole(1), row);
        aux.page_tokens = 1;
        aux
    };
    // The last of two stages has it, whichever rank comes first.
    let prefill = vec![
        vec![staged(0..2, kv(4, 0, 1))],
        vec![staged(2..4, kv(4, 0, 1)), aux()],
    ];
    let decode = vec![vec![kv(4, 0, 2), aux()], vec![kv(4, 1, 2), aux()]];
    moves(over, prefill, decode).await;
}

async fn sums_agree_where_two_ranks_write_one_cell(over: Over) {
    let mut world = World::new(over, hybrid(4), hybrid(2)).await;
    world.checksum = true;
    world.moves(1).await;
    world.end().await;
    let mut small = side(4, 2, DimOrder::NHD);
    for cube in small.iter_mut().flatten() {
        cube.page_tokens = 32;
    }
    let mut world = World::new(over, small, side(4, 1, DimOrder::PAGES_HND)).await;
    world.checksum = true;
    world.skip = 16;
    world.moves(2).await;
    world.end().await;
}

async fn an_abort_in_the_middle_of_one_leg_ends_all_and_gives_everything_back(over: Over) {
    let world = World::new(over, side(8, 4, DimOrder::NHD), side(8, 2, DimOrder::HND)).await;
    let mut receivers = Vec::new();
    for me in 0..2 {
        receivers.push(world.receive(1, me).await);
    }
    let mut senders = Vec::new();
    for me in 0..4 {
        let room = world.send(1, me).await.unwrap();
        world.push(&room, me, 0..32).await;
        senders.push(room);
    }
    // Ranks 0 and 1 send to decode's first; the second one's request goes on to its end.
    senders[1].abort("the user left");
    let ended = within(receivers[0].outcome()).await;
    let Outcome::Aborted(reason) = ended else {
        panic!("{ended}")
    };
    assert_eq!(reason.code, Code::Requested, "{reason}");
    let other = within(senders[0].outcome()).await;
    assert!(matches!(other, Outcome::Aborted(_)), "{other}");
    let back = within(receivers[0].released()).await;
    assert_eq!(back.proofs.len(), 2);
    drop(back);
    for (me, sender) in senders.iter().enumerate().skip(2) {
        world.push(sender, me, 32..64).await;
        world.push(sender, me, 64..75).await;
        sender.finish(75, None).unwrap();
    }
    assert_eq!(within(receivers[1].outcome()).await, Outcome::Done);
    drop(within(receivers[1].released()).await);
    for sender in &senders {
        within(sender.outcome()).await;
        drop(within(sender.released()).await);
    }
    world.moves(2).await;
    world.end().await;
}

/// Its last turn, of copying and of summing, has just what is left: nothing more would be given to it.
async fn a_chunk_of_whole_turns_of_a_lane_is_copied_and_summed_to_its_end(over: Over) {
    let wide = |ranks, order| {
        let mut side = side(8, ranks, order);
        for plane in side.iter_mut().flatten().flat_map(|cube| &mut cube.planes) {
            plane.channels = 64;
        }
        side
    };
    let (prefill, decode) = (wide(4, DimOrder::NHD), wide(2, DimOrder::HND));
    // Of 4 layers, K and V, a rank of prefill has 2 heads of 128 bytes: 2 KiB a token.
    let mut world = World::new(over, prefill, decode).await;
    (world.total, world.chunk, world.checksum) = (128, 128, true);
    world.moves(1).await;
    (world.total, world.checksum) = (64, false);
    world.moves(2).await;
    world.end().await;
}

async fn every_byte_is_right_over_a_long_run_with_aborts_between_unequal_ranks(over: Over) {
    let mut decode = side(8, 2, DimOrder::PAGES_HND);
    for cube in decode.iter_mut().flatten() {
        cube.page_tokens = 32;
        cube.pages = 3;
    }
    let mut world = World::new(over, side(8, 4, DimOrder::NHD), decode).await;
    let (mut done, mut ended) = (0, 0);
    for id in 0..48_u64 {
        // Which rank ends its room, after how many of the three chunks; none in every third round. All
        // rooms of decode have all pages there are, so a late write would be seen in the next round.
        let victim = (id % 3 != 0).then_some((id as usize % 6, id / 6 % 4));
        world.turn = id;
        world.checksum = id % 2 == 0;
        let mut receivers = Vec::new();
        for me in 0..2 {
            receivers.push(world.receive(id, me).await);
        }
        let mut senders = Vec::new();
        for me in 0..4 {
            senders.push(world.send(id, me).await.unwrap());
        }
        for round in 0..4 {
            if let Some((who, after)) = victim
                && after == round
            {
                match who.checked_sub(4) {
                    None => senders[who].abort("storm"),
                    Some(me) => receivers[me].abort("storm"),
                }
            }
            for (me, sender) in senders.iter().enumerate() {
                let tokens = round * 32..(round * 32 + 32).min(75);
                match round {
                    3 => drop(sender.finish(75, None)),
                    _ => world.try_push(sender, me, tokens).await,
                }
            }
        }
        for (me, room) in receivers.iter().enumerate() {
            let outcome = within(room.outcome()).await;
            let back = within(room.released()).await;
            let of = &world.decode[me].set[0];
            match outcome {
                Outcome::Done => {
                    let right = cube::check(&back.leases[0], of, &(0..75));
                    assert!(right.is_ok(), "room {id}, decode rank {me}: {right:?}");
                    done += 1;
                }
                Outcome::Aborted(_) => ended += 1,
            }
        }
        for sender in &senders {
            within(sender.outcome()).await;
            drop(within(sender.released()).await);
        }
    }
    assert!(done >= 48 && ended >= 16, "{done} done, {ended} ended");
    world.end().await;
}

async fn a_list_that_is_not_as_long_as_its_tokens_is_refused_on_both_sides(over: Over) {
    let world = World::new(over, side(4, 2, DimOrder::NHD), side(4, 1, DimOrder::NHD)).await;
    let (rank, peers) = (&world.decode[0], &world.peers[0]);
    let peers: Vec<&Peer> = peers.iter().collect();
    for tokens in [0..64, 0..96] {
        let room = rank.node.receive(RoomId(1)).from_ranks(&peers, 0).total(75);
        let room = room.into(rank.lease(0, &tokens));
        let error = within(room.start()).await.unwrap_err();
        let StartErrorKind::BadRequest(text) = &error.kind else {
            panic!("{error}")
        };
        let says = format!(
            "fill 5 pages of pool \"kv\", its lease has {}",
            tokens.end / 16
        );
        assert!(text.contains(&says), "{text}");
        assert_eq!(error.leases.len(), 1);
    }
    // A chunk whose lease is shorter or longer than its tokens.
    for (id, pages) in [(2, 0..16), (3, 0..48)] {
        let receiver = world.receive(id, 0).await;
        let sender = world.send(id, 0).await.unwrap();
        let lease = world.prefill[0].lease(0, &pages).into_read();
        let chunk = Chunk::tokens(0..32).pages(lease);
        within(sender.reserve()).await.unwrap().push(chunk).unwrap();
        for outcome in [
            within(sender.outcome()).await,
            within(receiver.outcome()).await,
        ] {
            let Outcome::Aborted(reason) = outcome else {
                panic!("{outcome}")
            };
            assert_eq!(reason.code, Code::BadChunk, "{reason}");
        }
        drop(within(receiver.released()).await);
        drop(within(sender.released()).await);
    }
    world.end().await;
}

async fn a_pool_that_is_added_later_says_what_it_holds(over: Over) {
    let mut world = World::new(over, side(4, 2, DimOrder::NHD), side(4, 1, DimOrder::HND)).await;
    let late = |mut cube: CubeLayout| {
        cube.name = "late".into();
        cube
    };
    for rank in world.prefill.iter_mut().chain(&mut world.decode) {
        let content = late(rank.set[0].clone());
        let pool = over.pool(content.pool_layout().unwrap());
        let pool = pool.with_content(content.clone()).unwrap();
        within(rank.node.add_pool(pool.clone())).await.unwrap();
        rank.pools.push(pool);
        rank.set.push(content);
    }
    for peer in &world.peers[0] {
        until("the peer's pool is known", || peer.contents().len() == 2).await;
    }
    world.moves(1).await;
    world.end().await;
}

async fn a_lane_inside_the_gate_of_one_leg_keeps_the_pages_of_all_until_it_is_out(over: Over) {
    let world = World::new(over, side(8, 4, DimOrder::NHD), side(8, 2, DimOrder::HND)).await;
    let receiver = world.receive(1, 0).await;
    let (rank, brake) = (&world.decode[0], &world.prefill[1].brake);
    brake.hold_after(0);
    let mut senders = Vec::new();
    for me in 0..2 {
        let sender = world.send(1, me).await.unwrap();
        world.push(&sender, me, 0..64).await;
        world.push(&sender, me, 64..75).await;
        sender.finish(75, None).unwrap();
        senders.push(sender);
    }
    until("a lane is inside", || brake.held() > 0).await;
    receiver.abort("the user left");
    let outcome = within(receiver.outcome()).await;
    assert!(matches!(outcome, Outcome::Aborted(_)), "{outcome}");
    for sender in &senders {
        let outcome = within(sender.outcome()).await;
        assert!(matches!(outcome, Outcome::Aborted(_)), "{outcome}");
    }
    // The other leg's sender is out, and its source free; what both write is not.
    drop(within(senders[0].released()).await);
    assert!(receiver.try_released().is_none());
    assert_eq!(rank.pools[0].leased_pages(), 5);
    brake.release();
    let mut back = within(receiver.released()).await;
    assert_eq!(back.proofs.len(), 2);
    cube::clear(&mut back.leases[0]);
    drop(within(senders[1].released()).await);
    // Nothing of the request came after the lease did.
    let right = cube::check(&back.leases[0], &world.decode[0].set[0], &(0..0));
    assert!(right.is_ok(), "{right:?}");
    drop(back);
    world.end().await;
}

async fn a_chunk_that_is_cut_inside_a_page_of_the_receiver_ends_the_room(over: Over) {
    let mut decode = side(4, 1, DimOrder::NHD);
    decode[0][0].page_tokens = 32;
    let world = World::new(over, side(4, 2, DimOrder::NHD), decode).await;
    let receiver = world.receive(1, 0).await;
    let sender = world.send(1, 0).await.unwrap();
    world.push(&sender, 0, 0..16).await;
    for outcome in [
        within(sender.outcome()).await,
        within(receiver.outcome()).await,
    ] {
        let Outcome::Aborted(reason) = outcome else {
            panic!("{outcome}")
        };
        assert_eq!(reason.code, Code::BadChunk, "{reason}");
        let says =
            "cut at token 16, inside a page of the receiver, whose pages hold 32 tokens (here 16)";
        assert!(reason.text.contains(says), "{reason}");
    }
    drop(within(receiver.released()).await);
    drop(within(sender.released()).await);
    world.end().await;
}

async fn a_request_of_another_length_ends_both_sides(over: Over) {
    let world = World::new(over, side(4, 2, DimOrder::NHD), side(4, 1, DimOrder::NHD)).await;
    for (id, total) in [(1, 48), (2, 80)] {
        let receiver = world.receive(id, 0).await;
        let mut senders = Vec::new();
        for me in 0..2 {
            let sender = world.send(id, me).await.unwrap();
            world.push(&sender, me, 0..48).await;
            senders.push(sender);
        }
        senders[0].finish(total, None).unwrap();
        for outcome in [
            within(receiver.outcome()).await,
            within(senders[0].outcome()).await,
            within(senders[1].outcome()).await,
        ] {
            let Outcome::Aborted(reason) = outcome else {
                panic!("{outcome}")
            };
            assert_eq!(reason.code, Code::LengthMismatch, "{reason}");
        }
        drop(within(receiver.released()).await);
        for sender in &senders {
            drop(within(sender.released()).await);
        }
    }
    world.end().await;
}

fn heads(start: u32, end: u32) -> Part {
    Part {
        layers: Span::new(0, LAYERS),
        heads: vec![Span::new(start, end); 2],
    }
}

async fn a_sender_that_lacks_a_head_refuses_and_names_it(over: Over) {
    let world = World::new(over, side(4, 2, DimOrder::NHD), side(4, 1, DimOrder::NHD)).await;
    let rank = &world.decode[0];
    let room = rank.node.receive(RoomId(1)).total(75);
    let peers = &world.peers[0];
    let room = room
        .from_part(&peers[0], [("kv", heads(0, 3))])
        .from_part(&peers[1], [("kv", heads(3, 4))])
        .into(rank.lease(0, &(0..75)));
    let receiver = within(room.start()).await.unwrap();
    let outcome = within(receiver.outcome()).await;
    let Outcome::Aborted(reason) = outcome else {
        panic!("{outcome}")
    };
    assert_eq!(reason.code, Code::LayoutMismatch, "{reason}");
    let says = "wants heads 0..3 of plane 0 of pool \"kv\"; the sender holds 0..2";
    assert!(reason.text.contains(says), "{reason}");
    drop(within(receiver.released()).await);
    world.end().await;
}

async fn whole_cells_of_other_heads_are_refused(over: Over) {
    // The first of two ranks, and the second: cells are as large.
    let world = World::new(over, vec![vec![kv(4, 0, 2)]], vec![vec![kv(4, 1, 2)]]).await;
    let rank = &world.decode[0];
    let room = rank.node.receive(RoomId(1)).total(75);
    let room = room.from(&world.peers[0][0]).into(rank.lease(0, &(0..75)));
    let receiver = within(room.start()).await.unwrap();
    let outcome = within(receiver.outcome()).await;
    let Outcome::Aborted(reason) = outcome else {
        panic!("{outcome}")
    };
    assert_eq!(reason.code, Code::LayoutMismatch, "{reason}");
    assert!(reason.text.contains("heads of plane 0"), "{reason}");
    drop(within(receiver.released()).await);
    world.end().await;
}

#[tokio::test]
async fn parts_that_leave_a_head_out_or_name_one_twice_are_refused() {
    let world = World::new(
        Over::Local,
        side(4, 2, DimOrder::NHD),
        side(4, 1, DimOrder::NHD),
    )
    .await;
    let (rank, peers) = (&world.decode[0], &world.peers[0]);
    let with = async |parts: [Part; 2]| {
        let [a, b] = parts;
        let room = rank.node.receive(RoomId(1)).total(75);
        let room = room
            .from_part(&peers[0], [("kv", a)])
            .from_part(&peers[1], [("kv", b)])
            .into(rank.lease(0, &(0..75)));
        let error = within(room.start()).await.unwrap_err();
        match error.kind {
            StartErrorKind::BadRequest(text) => text,
            other => panic!("{other}"),
        }
    };
    let mut short = heads(1, 4);
    short.layers = Span::new(1, LAYERS);
    for (parts, says) in [
        (
            [heads(0, 1), heads(2, 4)],
            "no sender covers layer 0, head 1 of plane 0",
        ),
        (
            [heads(0, 2), heads(1, 4)],
            "senders 0 and 1 both cover layer 0, head 1 of plane 0",
        ),
        (
            [heads(0, 1), short],
            "no sender covers layer 0, head 1 of plane 0",
        ),
        ([heads(0, 2), heads(2, 5)], "sender 1"),
        ([heads(0, 4), heads(0, 0)], "sender 1"),
    ] {
        let text = with(parts).await;
        assert!(text.contains(says), "{text}");
    }
    world.end().await;
}

#[test]
fn a_content_must_give_the_cells_of_its_pool() {
    let content = kv(4, 0, 1);
    let pool = || Pool::owned(content.pool_layout().unwrap()).unwrap();
    let with = |change: fn(&mut CubeLayout)| {
        let mut content = content.clone();
        change(&mut content);
        pool().with_content(content).unwrap_err()
    };
    let error = with(|c| c.pages = 17);
    assert!(matches!(error, PoolError::ContentDiffers { .. }), "{error}");
    let error = with(|c| c.layers = Share::part(4, 0, 5));
    assert!(matches!(error, PoolError::BadContent { .. }), "{error}");
    use kvroom::layout::Dim::{Head, Layer, Page, Plane, Token};
    let error = with(|c| c.order = DimOrder([Layer, Head, Page, Plane, Token]));
    let text = error.to_string();
    assert!(matches!(error, PoolError::NoCells { .. }), "{text}");
    assert!(text.contains("put page and layer before head"), "{text}");
    let twice = pool().with_content(content.clone()).unwrap();
    let error = twice.with_content(content.clone()).unwrap_err();
    assert!(
        matches!(error, PoolError::ContentAlreadySet { .. }),
        "{error}"
    );
}
