use super::*;
use crate::copy::schedule::Class;
use crate::peer::hello::{FarKey, MAX_REMOTE_KEY, MAX_WORKER, UcxOffer};
use kvroom_kernels::layout::cube::{CubeKind, CubeLayout, DimOrder, Dtype, Plane, Share};

fn greetings() -> Vec<Greeting> {
    let session = SessionId {
        lower: 1,
        higher: 2,
    };
    let refused = Verdict::Refused {
        code: RefusalCode::Busy,
        text: "ü".repeat(MAX_REFUSAL / 2),
    };
    let mut all = vec![Greeting::Mac([3; 32]), Greeting::Offer(offer())];
    let verdicts = [
        Verdict::Accept { session },
        refused,
        Verdict::Go,
        Verdict::Crossed,
    ];
    all.extend(verdicts.map(Greeting::Verdict));
    all
}

fn firsts() -> [Greeting; 2] {
    let data = DataHello::new(1 << 100, (Class::Interactive, 7), 3, None);
    [Greeting::Hello(hello()), Greeting::Data(data)]
}

#[test]
fn what_is_said_is_heard_however_the_stream_is_cut_and_no_byte_more_is_taken() {
    for first in firsts() {
        let mut stream = Vec::new();
        encode_first_greeting(&first, &mut stream).unwrap();
        let payload: Box<[u8]> = stream[PREFIX..].into();
        for later in greetings() {
            encode_greeting(&later, &mut stream).unwrap();
        }
        stream.extend_from_slice(b"behind");
        for cut in 0..=stream.len() {
            let mut reader = GreetingReader::default();
            let (mut got, mut said) = (Vec::new(), None);
            let (one, two) = stream.split_at(cut);
            let mut left = Vec::new();
            for mut part in [one, two] {
                while got.len() < 1 + greetings().len() {
                    let next = if got.is_empty() {
                        let next = reader.first(&mut part).unwrap();
                        next.map(|first| {
                            said = Some(first.payload);
                            first.greeting
                        })
                    } else {
                        reader.next(&mut part, OFFER_BYTES).unwrap()
                    };
                    match next {
                        Some(greeting) => got.push(greeting),
                        None => break,
                    }
                }
                left.extend_from_slice(part);
            }
            assert_eq!(got[0], first, "cut at {cut}");
            assert_eq!(got[1..], greetings(), "cut at {cut}");
            assert_eq!(said.as_ref(), Some(&payload));
            assert_eq!(left, b"behind", "cut at {cut}");
        }
    }
}

#[test]
fn something_else_that_speaks_is_recognised() {
    let found = u32::from_le_bytes(*b"GET ");
    let error = Err(WireError::NotKvroom { found });
    assert_eq!(decode_first_greeting(b"GET / HTTP"), error);
    let mut reader = GreetingReader::default();
    let heard = reader.first(&mut &b"GET / HTTP/1.1\r\n"[..]);
    assert_eq!(heard.map(|_| ()), error.map(|_| ()));
    assert!(matches!(
        decode_first_greeting(b"KV"),
        Err(WireError::Malformed { .. })
    ));
}

#[test]
fn a_stranger_makes_this_node_hold_a_kibibyte_at_most() {
    let len = STRANGER_BYTES as u32 + 1;
    let mut reader = GreetingReader::default();
    let found = length_word(len);
    let error = reader.first(&mut &found.to_le_bytes()[..]).unwrap_err();
    assert_eq!(error, WireError::NotKvroom { found });
    let longest = framed(&vec![0; STRANGER_BYTES]);
    let mut reader = GreetingReader::default();
    let error = reader.first(&mut &longest[..]).unwrap_err();
    assert_eq!(error, WireError::NotKvroom { found: 0 });
    let mut reader = GreetingReader::default();
    let error = reader
        .next(&mut &found.to_le_bytes()[..], STRANGER_BYTES)
        .unwrap_err();
    let (len, limit) = (len as usize, STRANGER_BYTES);
    assert_eq!(error, WireError::TooLong { len, limit });
}

#[test]
fn the_longest_hello_and_the_longest_offer_may_be_said() {
    let name = "n".repeat(64);
    let mut longest = hello();
    longest.node = name.clone();
    let mut out = Vec::new();
    encode_first_greeting(&Greeting::Hello(longest), &mut out).unwrap();

    let mut most = offer();
    let (_, layout) = most.pools[0].clone();
    most.pools = (0..64)
        .map(|n| {
            let mut layout = layout.clone();
            layout.name = format!("{}{n:02}", &name[2..]);
            (PoolId(n), layout)
        })
        .collect();
    // Each says what it holds, in as many words as there can be.
    let plane = Plane {
        heads: Share::part(u32::MAX, u32::MAX / 2, 1),
        channels: 1 << 20,
        dtype: Dtype::new(&name[..32], 128),
    };
    let content = |layout: &PoolLayout| CubeLayout {
        name: layout.name.clone(),
        kind: CubeKind::Scale { of: name.clone() },
        layers: Share::part(u32::MAX, u32::MAX / 2, 1),
        planes: vec![plane.clone(); CubeLayout::MAX_PLANES],
        page_tokens: 1 << 16,
        granule: 1 << 16,
        pages: 1 << 16,
        page_gap: 1 << 36,
        order: DimOrder::NHD,
    };
    for (id, layout) in &mut most.pools {
        let content = content(layout);
        *layout = content.pool_layout().unwrap();
        most.contents.push((*id, content));
    }
    let key = FarKey {
        base: u64::MAX,
        key: vec![9; MAX_REMOTE_KEY],
    };
    most.ucx = Some(UcxOffer {
        version: (1, 22, 0),
        rdma: true,
        always: true,
        one_sided: true,
        worker: vec![9; MAX_WORKER],
        probe: key.clone(),
        pools: (0..64).map(|n| (PoolId(n), key.clone())).collect(),
    });
    encode_greeting(&Greeting::Offer(most), &mut out).unwrap();
    assert!(out.len() > OFFER_BYTES / 2, "{}", out.len());
}

/// What is wrong with a greeting, both when it is to be said and when it is heard.
fn wrong(greeting: Greeting) -> String {
    let mut out = b"before".to_vec();
    let error = encode_greeting(&greeting, &mut out).unwrap_err();
    assert_eq!(out, b"before");
    encode(&greeting, 0, &mut out, MAX).unwrap();
    let payload = &out[b"before".len() + PREFIX..];
    assert_eq!(decode_greeting(payload, OFFER_BYTES), Err(error.clone()));
    error.to_string()
}

#[test]
fn a_greeting_is_bounded() {
    let greets = |change: fn(&mut Hello)| {
        let mut hello = hello();
        change(&mut hello);
        wrong(Greeting::Hello(hello))
    };
    assert!(greets(|h| h.node.clear()).contains("a node name of 0 bytes"));
    assert!(greets(|h| h.node = "n".repeat(65)).contains("a node name of 65 bytes"));
    assert!(greets(|h| h.protocols.oldest = 9).contains("protocols 9 to 6"));

    let offers = |change: fn(&mut Offer)| {
        let mut offer = offer();
        change(&mut offer);
        wrong(Greeting::Offer(offer))
    };
    assert!(offers(|o| o.pools[1].0 = PoolId(0)).contains("listed twice"));
    assert!(offers(|o| o.pools[1].1.name = "kv".into()).contains("listed twice"));
    assert!(offers(|o| o.pools = vec![o.pools[0].clone(); 65]).contains("65 pools"));
    assert!(offers(|o| o.pools[0].1.layers = 0).contains("pool kv without layers"));

    let refused = Greeting::Verdict(Verdict::Refused {
        code: RefusalCode::Other,
        text: "x".repeat(MAX_REFUSAL + 1),
    });
    assert!(wrong(refused).contains("513 bytes of text"));
}
