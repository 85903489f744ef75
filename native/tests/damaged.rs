//! Damaged batches: none makes the reader panic, and what it keeps stays whole.
//!
//! `TRACEKIT_BATCHES` says how many (20,000 where it is not set), `TRACEKIT_SEED` from which on.

use tracekit_kineto::json::Cursor;
use tracekit_kineto::reader::{Cuts, Kind, Reader, Shape};

const WIDTHS: [usize; 3] = [12, 10, 6];

const WHOLE: &str = r#"[{"ph": "X", "cat": "op", "name": "aten::add", "pid": 1, "tid": 2,
 "ts": 1732700000123456.789, "dur": 2.5, "args": {"id": 7, "dims": [[2, 3], []], "x": 1e-7}},
{"ph":"X","cat":"gpu","name":"void k<int>(\"\\\")","pid":0,"tid":"stream 7","ts":5,"dur":1.25,
 "args":{"id":-9,"grid":[1,2,3],"block":[4,5,6],"kind":"a","rare":null,"y":{"z":[true,false]}}},
{"cat":"flow","ph":"s","id":3,"ts":4.75}, {"args":{"id":null},"ts":1,"tid":2,"pid":3,"dur":0,
 "name":"caf\u00e9 é 😀","cat":"op","ph":"X"}, {"ph":"i","cat":"instant","name":"[memory]","s":"t",
 "pid":1,"tid":1,"ts":9,"args":{"Bytes":1}}, {"ph":"M","name":"process_name","args":{}}, 12]"#;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

fn reader() -> Reader {
    let mut reader = Reader::default();
    let mut op = Kind::new(b'X', WIDTHS[0]);
    assert!(op.add_field(b"id", Shape::Integer, 6) && op.add_field(b"dims", Shape::Fragment, 7));
    let mut gpu = Kind::new(b'X', WIDTHS[1]);
    gpu.names = 1;
    gpu.far_flags = 2;
    gpu.far_tid = 100;
    assert!(gpu.add_field(b"id", Shape::Integer, 6) && gpu.add_field(b"grid", Shape::Triple, 7));
    assert!(gpu.add_field(b"kind", Shape::Text, 0) && gpu.add_field(b"rare", Shape::Null, 0));
    let mut instant = Kind::new(b'i', WIDTHS[2]);
    instant.has_dur = false;
    instant.needs_args = true;
    for (kind, name) in [(op, "op"), (gpu, "gpu"), (instant, "instant")] {
        let number = reader.add_kind(kind);
        reader.add_category(name.as_bytes(), Some(number));
    }
    reader.add_category(b"flow", None);
    reader
}

fn damaged(random: &mut Random) -> Vec<u8> {
    let mut text = WHOLE.as_bytes().to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(text.len());
        let end = (at + 1 + random.below(30)).min(text.len());
        match random.below(7) {
            0 => text.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (at % 8)),
            1 => {
                let byte = b"{}[]\",:\\0e.-9 n\x1f\xff"[random.below(17)];
                text.iter_mut().skip(at).take(1).for_each(|kept| *kept = byte);
            }
            2 => drop(text.drain(at..end)),
            3 => {
                let copy = text[at..end].to_vec();
                let to = random.below(text.len());
                text.splice(to..to, copy);
            }
            4 => text.truncate(at),
            5 => {
                let digits = b"99999999999999999999".iter().take(random.below(20));
                text.splice(at..at, digits.copied());
            }
            _ => {
                let open = [b'[', b'{', b'"'][random.below(3)];
                text.splice(at..at, std::iter::repeat(open).take(random.below(70)));
            }
        }
        if text.is_empty() {
            break;
        }
    }
    text
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn damaged_batches_are_refused_or_read_whole() {
    let count = setting("TRACEKIT_BATCHES", 20_000);
    let mut random = Random(setting("TRACEKIT_SEED", 1) | 1);
    let mut reader = reader();
    let (mut refused, mut events, mut taken) = (0u64, 0u64, 0u64);
    for turn in 0..count {
        if turn % 1000 == 0 {
            reader = self::reader();
        }
        let text = damaged(&mut random);
        let before: Vec<usize> = (0..4).map(|slot| reader.rows(slot).len()).collect();
        let cuts = (turn % 3 == 0).then_some(Cuts { next: 100, every: 400 });
        match reader.batch(&text, 5, 1 << 62, cuts) {
            Ok(counts) => {
                let rest = &reader.rest;
                assert_eq!(counts.taken + reader.rest_places.len() as u64, counts.events);
                assert!(Cursor::new(rest).value().is_ok_and(|whole| whole == rest));
                for (slot, width) in WIDTHS.iter().enumerate() {
                    let rows = reader.rows(slot);
                    assert_eq!(rows.len() % width, 0);
                    for row in rows[before[slot]..].chunks(*width) {
                        assert!((5..5 + counts.events as i64).contains(&row[0]));
                        assert!(row[1] > 0 && row[1] < 1 << 62 && row[2] >= 0);
                    }
                }
                events += counts.events;
                taken += counts.taken;
            }
            Err(_) => {
                refused += 1;
                let after: Vec<usize> = (0..4).map(|slot| reader.rows(slot).len()).collect();
                assert_eq!(after, before);
            }
        }
    }
    println!("{count} batches, {refused} refused; of {events} events {taken} taken");
    assert!(refused > 0 && taken > 0 && taken < events, "the damage is all or nothing");
}

/// The rows of each slot with texts in place of codes, whose numbers depend on what was met before.
fn rows(reader: &Reader) -> Vec<(Vec<i64>, Vec<u8>, Vec<u8>)> {
    let text = |table: usize, code: i64| {
        let (texts, ends) = (reader.tables[table].texts(), reader.tables[table].ends());
        let Ok(code) = usize::try_from(code) else { return b"none".to_vec() };
        let start = code.checked_sub(1).map_or(0, |before| ends[before] as usize);
        texts[start..ends[code] as usize].to_vec()
    };
    let mut all = Vec::new();
    for (slot, width) in WIDTHS.iter().enumerate() {
        for row in reader.rows(slot).chunks(*width) {
            let name = text(usize::from(slot == 1), row[3]);
            let dims = if slot == 0 { text(2, row[7]) } else { Vec::new() };
            let mut numbers = row.to_vec();
            numbers[3] = 0;
            if slot == 0 {
                numbers[7] = 0;
            }
            all.push((numbers, name, dims));
        }
    }
    all
}

#[test]
fn what_was_met_before_changes_no_damaged_batch() {
    let mut random = Random(setting("TRACEKIT_SEED", 1) | 1);
    let mut used = reader();
    for _ in 0..setting("TRACEKIT_BATCHES", 20_000) / 4 {
        let text = damaged(&mut random);
        let mut fresh = reader();
        let (one, other) = (used.batch(&text, 5, 1 << 62, None), fresh.batch(&text, 5, 1 << 62, None));
        assert_eq!(one, other);
        if one.is_ok() {
            assert_eq!((&used.rest, &used.rest_places), (&fresh.rest, &fresh.rest_places));
            assert_eq!(rows(&used), rows(&fresh));
        }
        used.roll_back();
    }
}
