//! From a batch of events to rows, as far as they are of the shape that was described.

use crate::again::Again;
use crate::interned::Interned;
use crate::json::{Cursor, Escapes, Refused};

/// A number that is not there.
pub const NULL: i64 = i64::MIN;
/// Columns that every row begins with: place, start_ns, dur_ns, name, pid, tid.
pub const COMMON: usize = 6;
/// Most columns of a row.
pub const MAX_WIDTH: usize = 32;
/// Most arguments of a kind that are told apart.
const MAX_FIELDS: usize = 64;
/// Longest text before a value that is kept, and how many are kept a position.
const MAX_LEAD: usize = 256;
const MAX_LEADS: usize = 4;
/// Longest duration that is taken without a closer look: a day.
const MAX_DUR_NS: i64 = 24 * 3600 * 1_000_000_000;
/// Tables of interned texts.
pub const TABLES: usize = 3;
/// Boundaries that Python tries before a batch counts as damaged.
const CANDIDATES: usize = 6;
/// The table of nested arguments.
const FRAGMENTS: usize = TABLES - 1;

/// What an argument must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An integer of 64 bits or null, kept.
    Integer,
    /// Any value, its text kept as a code.
    Fragment,
    /// Three integers of 32 bits or null, kept in three columns.
    Triple,
    /// Text or null, not kept.
    Text,
    /// Null or absent.
    Null,
    /// Absent.
    Absent,
}

struct Field {
    key: Box<[u8]>,
    shape: Shape,
    column: usize,
}

/// What events of some categories must look like.
pub struct Kind {
    /// Phase.
    pub phase: u8,
    /// Whether there must be a duration, or must be none.
    pub has_dur: bool,
    /// Whether there must be arguments.
    pub needs_args: bool,
    /// Whether rows are kept, or events only looked at and counted.
    pub is_kept: bool,
    /// Table of the names.
    pub names: usize,
    /// Names with one of these flags are handed back.
    pub odd_flags: u8,
    /// Names with one of these flags are handed back where the thread's id is at least `far_tid`.
    pub far_flags: u8,
    /// See `far_flags`.
    pub far_tid: i64,
    /// Columns of a row.
    pub width: usize,
    fields: Vec<Field>,
    leads: Leads<Option<usize>>,
}

impl Kind {
    /// A kind without arguments that matter.
    pub fn new(phase: u8, width: usize) -> Self {
        Self {
            phase,
            has_dur: true,
            needs_args: false,
            is_kept: true,
            names: 0,
            odd_flags: 0,
            far_flags: 0,
            far_tid: i64::MAX,
            width: width.clamp(COMMON, MAX_WIDTH),
            fields: Vec::new(),
            leads: Leads::default(),
        }
    }

    /// One more argument; whether there was room for it.
    pub fn add_field(&mut self, key: &[u8], shape: Shape, column: usize) -> bool {
        let columns = match shape {
            Shape::Integer | Shape::Fragment => 1,
            Shape::Triple => 3,
            Shape::Text | Shape::Null | Shape::Absent => 0,
        };
        if self.fields.len() >= MAX_FIELDS || column + columns > self.width {
            return false;
        }
        self.fields.push(Field { key: key.into(), shape, column });
        true
    }
}

/// What was met before the values of an object: comma, key and colon as they stood, by position.
///
/// Objects of one origin have their keys in the same order, so one comparison of bytes mostly
/// takes the place of reading them.
struct Leads<T> {
    by_position: Vec<Vec<(Box<[u8]>, T)>>,
}

impl<T> Default for Leads<T> {
    fn default() -> Self {
        Self { by_position: Vec::new() }
    }
}

impl<T: Copy> Leads<T> {
    /// Pass over what comes before a value if it was met at this position; what was said of it.
    #[inline]
    fn pass(&self, position: usize, cursor: &mut Cursor<'_>) -> Option<T> {
        let met = self.by_position.get(position)?;
        met.iter().find(|(text, _)| cursor.has_text(text)).map(|&(_, said)| said)
    }

    /// Say something of what came before the value at a position.
    fn learn(&mut self, position: usize, text: &[u8], said: T) {
        if position >= MAX_FIELDS || text.len() > MAX_LEAD {
            return;
        }
        if position >= self.by_position.len() {
            self.by_position.resize_with(position + 1, Vec::new);
        }
        if let Some(met) = self.by_position.get_mut(position) {
            if met.len() >= MAX_LEADS {
                met.remove(0);
            }
            met.push((text.into(), said));
        }
    }
}

/// Pass over what comes before a value, its key included; nothing at the end of the object.
fn lead<'a>(
    cursor: &mut Cursor<'a>,
    position: usize,
) -> Result<Option<(&'a [u8], Escapes)>, Refused> {
    cursor.space();
    if cursor.has(b'}') {
        return Ok(None);
    }
    if position > 0 {
        cursor.expect(b',')?;
        cursor.space();
    }
    cursor.key().map(Some)
}

/// What becomes of a category's events.
#[derive(Clone, Copy)]
struct Category {
    kind: Option<usize>,
    slot: usize,
}

/// What a batch held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Values of the list.
    pub events: u64,
    /// Events that were taken, rows or not.
    pub taken: u64,
    /// Whether a time of theirs is no whole microsecond.
    pub has_fraction: bool,
}

/// Rows and texts of a file.
#[derive(Default)]
pub struct Reader {
    kinds: Vec<Kind>,
    categories: Vec<(Box<[u8]>, Category)>,
    leads: Leads<u8>,
    /// Arguments that were passed before.
    again: Again,
    /// Rows of each slot, one behind the other.
    slots: Vec<Vec<i64>>,
    /// Where each slot ended before the last batch.
    marks: Vec<usize>,
    /// Names and nested arguments.
    pub tables: [Interned; TABLES],
    /// The events that were not taken, as a JSON list.
    pub rest: Vec<u8>,
    /// Which events of the batch these are.
    pub rest_places: Vec<i64>,
}

enum Outcome {
    Taken,
    Rest,
}

impl Reader {
    /// Describe a kind; its number.
    pub fn add_kind(&mut self, kind: Kind) -> usize {
        self.kinds.push(kind);
        self.kinds.len() - 1
    }

    /// A kind that was described.
    pub fn kind_mut(&mut self, kind: usize) -> Option<&mut Kind> {
        self.kinds.get_mut(kind)
    }

    /// A category of a kind, or of none where its events are only counted; its slot.
    pub fn add_category(&mut self, name: &[u8], kind: Option<usize>) -> usize {
        let slot = self.slots.len();
        self.slots.push(Vec::new());
        self.categories.push((name.into(), Category { kind, slot }));
        slot
    }

    /// Rows of a slot, one behind the other.
    pub fn rows(&self, slot: usize) -> &[i64] {
        self.slots.get(slot).map_or(&[], Vec::as_slice)
    }

    /// Forget the rows of a slot.
    pub fn clear(&mut self, slot: usize) {
        if let Some(rows) = self.slots.get_mut(slot) {
            rows.clear();
        }
    }

    /// Forget the rows of the last batch.
    pub fn roll_back(&mut self) {
        for (rows, &mark) in self.slots.iter_mut().zip(&self.marks) {
            rows.truncate(mark);
        }
    }

    /// Rows of a batch, a JSON list whose first event has the ordinal `place`.
    ///
    /// Events whose time is not above zero and below `limit_ns` are not taken. Where the text is
    /// refused nothing of it is kept. With `cuts` it is refused as well where Python, which is given
    /// the text up to each cut in turn, would not read up to the last event that begins before it.
    pub fn batch(
        &mut self,
        text: &[u8],
        place: i64,
        limit_ns: i64,
        cuts: Option<Cuts>,
    ) -> Result<Counts, Refused> {
        self.marks.clear();
        self.marks.extend(self.slots.iter().map(Vec::len));
        self.rest.clear();
        self.rest.push(b'[');
        self.rest_places.clear();
        let result = self.events(text, place, limit_ns, cuts);
        if result.is_err() {
            self.roll_back();
        }
        self.rest.push(b']');
        result
    }

    fn events(
        &mut self,
        text: &[u8],
        place: i64,
        limit_ns: i64,
        cuts: Option<Cuts>,
    ) -> Result<Counts, Refused> {
        std::str::from_utf8(text).map_err(|_| Refused)?;
        let mut cursor = Cursor::new(text);
        let mut counts = Counts::default();
        let mut cuts = cuts;
        cursor.space();
        cursor.expect(b'[')?;
        cursor.space();
        if !cursor.has(b']') {
            loop {
                cursor.space();
                let start = cursor.at();
                let at = place.checked_add_unsigned(counts.events).ok_or(Refused)?;
                match self.event(&mut cursor, at, limit_ns, &mut counts)? {
                    Outcome::Taken => counts.taken += 1,
                    Outcome::Rest => {
                        if !self.rest_places.is_empty() {
                            self.rest.push(b',');
                        }
                        self.rest.extend_from_slice(cursor.since(start));
                        self.rest_places.push(at);
                    }
                }
                counts.events += 1;
                let event = cursor.since(start);
                cursor.space();
                let is_last = cursor.has(b']');
                if !is_last {
                    cursor.expect(b',')?;
                    cursor.space();
                }
                if let Some(cuts) = &mut cuts {
                    if cuts.next <= cursor.at() && !cuts.pass(start, cursor.at(), event) {
                        return Err(Refused);
                    }
                }
                if is_last {
                    break;
                }
            }
        }
        if cursor.is_at_end() {
            Ok(counts)
        } else {
            Err(Refused)
        }
    }

    fn event(
        &mut self,
        cursor: &mut Cursor<'_>,
        place: i64,
        limit_ns: i64,
        counts: &mut Counts,
    ) -> Result<Outcome, Refused> {
        if cursor.peek() != b'{' {
            cursor.value()?;
            return Ok(Outcome::Rest);
        }
        cursor.expect(b'{')?;
        let mut seen = Seen::default();
        let mut row = [NULL; MAX_WIDTH];
        for position in 0.. {
            let bit = match self.leads.pass(position, cursor) {
                Some(bit) => bit,
                None => {
                    let start = cursor.at();
                    let Some((key, escapes)) = lead(cursor, position)? else { break };
                    let bit = member_bit(key);
                    if escapes == Escapes::None {
                        self.leads.learn(position, cursor.since(start), bit);
                    }
                    seen.is_odd |= escapes != Escapes::None;
                    bit
                }
            };
            self.member(bit, cursor, &mut seen, &mut row)?;
        }
        let Some(category) = seen.category.filter(|_| !seen.is_odd) else {
            return Ok(Outcome::Rest);
        };
        let Some(kind_number) = category.kind else {
            return Ok(Outcome::Taken);
        };
        if let Some(start) = seen.late_args {
            let end = cursor.at();
            cursor.back_to(start);
            self.args(cursor, kind_number, &mut seen, &mut row)?;
            cursor.back_to(end);
        }
        Ok(self.finish(category.slot, kind_number, place, limit_ns, &seen, &mut row, counts))
    }

    /// Keep an event whose members are all known, if it is of the expected shape.
    #[allow(clippy::too_many_arguments)]
    fn finish(
        &mut self,
        slot: usize,
        kind_number: usize,
        place: i64,
        limit_ns: i64,
        seen: &Seen<'_>,
        row: &mut [i64; MAX_WIDTH],
        counts: &mut Counts,
    ) -> Outcome {
        let Some(kind) = self.kinds.get(kind_number) else {
            return Outcome::Rest;
        };
        let (Some(name), Some(start), Some(pid), Some(tid)) =
            (seen.name, seen.start, seen.pid, seen.tid)
        else {
            return Outcome::Rest;
        };
        let dur = match (seen.dur, kind.has_dur, seen.keys & DUR != 0) {
            (Some(dur), true, _) => dur,
            (None, false, false) => 0,
            _ => return Outcome::Rest,
        };
        let is_plain = !seen.is_odd
            && seen.phase == Some(kind.phase)
            && start > 0
            && start < limit_ns
            && dur <= MAX_DUR_NS
            && (!kind.needs_args || seen.has_args);
        if !is_plain {
            return Outcome::Rest;
        }
        let Some(table) = self.tables.get_mut(kind.names) else {
            return Outcome::Rest;
        };
        let Some(code) = table.code(name) else {
            return Outcome::Rest;
        };
        let flags = table.flags(code);
        if flags & kind.odd_flags != 0 || (flags & kind.far_flags != 0 && tid >= kind.far_tid) {
            return Outcome::Rest;
        }
        counts.has_fraction |= start % 1000 != 0 || dur % 1000 != 0;
        if kind.is_kept {
            row[..COMMON].copy_from_slice(&[place, start, dur, i64::from(code), pid, tid]);
            if let (Some(rows), Some(row)) = (self.slots.get_mut(slot), row.get(..kind.width)) {
                rows.extend_from_slice(row);
            }
        }
        Outcome::Taken
    }

    /// The value of a member of an event.
    #[inline]
    fn member<'a>(
        &mut self,
        bit: u8,
        cursor: &mut Cursor<'a>,
        seen: &mut Seen<'a>,
        row: &mut [i64; MAX_WIDTH],
    ) -> Result<(), Refused> {
        seen.is_odd |= seen.keys & bit != 0;
        seen.keys |= bit;
        let next = cursor.peek();
        match bit {
            PH | CAT | NAME if next == b'"' => {
                let (text, escapes) = cursor.string()?;
                match bit {
                    PH => match text {
                        [phase] => seen.phase = Some(*phase),
                        _ => seen.phase = None,
                    },
                    CAT => {
                        seen.category = self
                            .categories
                            .iter()
                            .find(|(name, _)| **name == *text)
                            .map(|(_, category)| *category);
                    }
                    // Escapes of one character are read by Python, where a name is new.
                    _ => seen.name = (escapes < Escapes::Unicode).then_some(text),
                }
            }
            PID => seen.pid = id(cursor, next)?,
            TID => seen.tid = id(cursor, next)?,
            TS | DUR if matches!(next, b'0'..=b'9' | b'-') => {
                let time = cursor.nanoseconds()?;
                if bit == TS {
                    seen.start = time;
                } else {
                    seen.dur = time;
                }
            }
            ARGS => match seen.category.map(|category| category.kind) {
                Some(Some(kind)) if !seen.is_odd => self.args(cursor, kind, seen, row)?,
                _ => {
                    seen.late_args = Some(cursor.at());
                    cursor.value()?;
                }
            },
            _ => {
                cursor.value()?;
            }
        }
        Ok(())
    }

    /// The arguments of an event whose kind is known.
    fn args(
        &mut self,
        cursor: &mut Cursor<'_>,
        kind: usize,
        seen: &mut Seen<'_>,
        row: &mut [i64; MAX_WIDTH],
    ) -> Result<(), Refused> {
        seen.late_args = None;
        if cursor.peek() != b'{' {
            seen.is_odd |= cursor.value()? != b"null";
            return Ok(());
        }
        seen.has_args = true;
        cursor.expect(b'{')?;
        let mut fields: u64 = 0;
        for position in 0.. {
            let Some(known) = self.kinds.get_mut(kind) else {
                return Err(Refused);
            };
            let field = match known.leads.pass(position, cursor) {
                Some(field) => field,
                None => {
                    let start = cursor.at();
                    let Some((key, escapes)) = lead(cursor, position)? else { return Ok(()) };
                    let field = known.fields.iter().position(|field| *field.key == *key);
                    if escapes == Escapes::None {
                        known.leads.learn(position, cursor.since(start), field);
                    }
                    seen.is_odd |= escapes != Escapes::None;
                    field
                }
            };
            match field {
                None => {
                    self.again.value(cursor)?;
                }
                Some(number) => {
                    seen.is_odd |= fields >> number & 1 == 1;
                    fields |= 1 << number;
                    let Some(field) = known.fields.get(number) else {
                        return Err(Refused);
                    };
                    let kept = row.get_mut(field.column..).unwrap_or_default();
                    let is_kept = if field.shape == Shape::Fragment {
                        let code = self.again.code(cursor, &mut self.tables[FRAGMENTS])?;
                        keep(code.map(i64::from), kept)
                    } else {
                        argument(cursor, field.shape, kept)?
                    };
                    if !is_kept {
                        seen.is_odd = true;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Where Python cuts a long text that it is given in parts.
#[derive(Clone, Copy, Debug)]
pub struct Cuts {
    /// Where the next part of the text ends.
    pub next: usize,
    /// Length of a part.
    pub every: usize,
}

impl Cuts {
    /// Pass an event and what follows it up to the next; whether Python reads up to the event at
    /// each end of a part in between: it begins in that part, and so few places in it look like a
    /// boundary between two that its own is among those that are tried.
    fn pass(&mut self, start: usize, next_start: usize, event: &[u8]) -> bool {
        while self.next <= next_start {
            let is_cut = self.next <= start.saturating_add(self.every)
                && (self.next <= start || boundaries(event) < CANDIDATES);
            if !is_cut || self.every == 0 {
                return false;
            }
            self.next += self.every;
        }
        true
    }
}

/// Places within an event that look like a boundary between two: `}`, a comma and `{`.
fn boundaries(event: &[u8]) -> usize {
    event.split(|&byte| byte == b'}').skip(1).filter(|part| is_comma_and_brace(part)).count()
}

/// Whether a text begins with a comma and a brace, with white space as Python's `\s` has it.
fn is_comma_and_brace(text: &[u8]) -> bool {
    let rest = |text: &[u8]| text.iter().position(|byte| !matches!(byte, 9..=13 | b' '));
    let Some(comma) = rest(text) else { return false };
    let Some((b',', text)) = text.get(comma..).and_then(<[u8]>::split_first) else {
        return false;
    };
    rest(text).is_some_and(|brace| text.get(brace) == Some(&b'{'))
}

const PH: u8 = 1;
const CAT: u8 = 2;
const NAME: u8 = 4;
const PID: u8 = 8;
const TID: u8 = 16;
const TS: u8 = 32;
const DUR: u8 = 64;
const ARGS: u8 = 128;

/// Which member a key is; 0 for one that does not matter.
fn member_bit(key: &[u8]) -> u8 {
    match key {
        b"ph" => PH,
        b"cat" => CAT,
        b"name" => NAME,
        b"pid" => PID,
        b"tid" => TID,
        b"ts" => TS,
        b"dur" => DUR,
        b"args" => ARGS,
        _ => 0,
    }
}

/// Members of one event.
#[derive(Default)]
struct Seen<'a> {
    keys: u8,
    is_odd: bool,
    phase: Option<u8>,
    category: Option<Category>,
    name: Option<&'a [u8]>,
    pid: Option<i64>,
    tid: Option<i64>,
    start: Option<i64>,
    dur: Option<i64>,
    has_args: bool,
    /// Arguments that stand before the category: where.
    late_args: Option<usize>,
}

/// A process or thread: an integer, or text such as "7" or "stream 7".
fn id(cursor: &mut Cursor<'_>, next: u8) -> Result<Option<i64>, Refused> {
    match next {
        b'0'..=b'9' | b'-' => Ok(cursor.integer()?.filter(|&value| value != NULL)),
        b'"' => {
            let (text, _) = cursor.string()?;
            let digits = text.strip_prefix(b"stream").unwrap_or(text).trim_ascii();
            let are_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            if !are_digits || digits.len() > 18 {
                return Ok(None);
            }
            Ok(digits.iter().try_fold(0i64, |value, digit| {
                value.checked_mul(10)?.checked_add(i64::from(digit & 15))
            }))
        }
        _ => {
            cursor.value()?;
            Ok(None)
        }
    }
}

/// Keep a number in the first column; whether there is one.
#[inline]
fn keep(value: Option<i64>, kept: &mut [i64]) -> bool {
    let (Some(value), Some(first)) = (value, kept.first_mut()) else {
        return false;
    };
    *first = value;
    true
}

/// Read an argument, but a fragment, into the columns from its own on; whether it was of its shape.
#[inline]
fn argument(
    cursor: &mut Cursor<'_>,
    shape: Shape,
    kept: &mut [i64],
) -> Result<bool, Refused> {
    let next = cursor.peek();
    let is_number = matches!(next, b'0'..=b'9' | b'-');
    match shape {
        Shape::Integer if is_number => {
            Ok(keep(cursor.integer()?.filter(|&value| value != NULL), kept))
        }
        Shape::Triple if next == b'[' => triple(cursor, kept),
        Shape::Text if next == b'"' => {
            let (_, escapes) = cursor.string()?;
            Ok(escapes < Escapes::Unicode)
        }
        _ => {
            let value = cursor.value()?;
            Ok(value == b"null" && shape != Shape::Absent)
        }
    }
}

/// Three integers of 32 bits.
fn triple(cursor: &mut Cursor<'_>, kept: &mut [i64]) -> Result<bool, Refused> {
    let start = cursor.at();
    let Some(kept) = kept.first_chunk_mut::<3>() else {
        return Err(Refused);
    };
    cursor.expect(b'[')?;
    for (i, value) in kept.iter_mut().enumerate() {
        cursor.space();
        let is_number = matches!(cursor.peek(), b'0'..=b'9' | b'-');
        let read = if is_number { cursor.integer()? } else { None };
        let fits = read.filter(|&value| i32::try_from(value).is_ok());
        cursor.space();
        let is_followed = cursor.has(if i < 2 { b',' } else { b']' });
        let (Some(fits), true) = (fits, is_followed) else {
            cursor.back_to(start);
            cursor.value()?;
            return Ok(false);
        };
        *value = fits;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> Reader {
        let mut reader = Reader::default();
        let mut kind = Kind::new(b'X', 12);
        assert!(kind.add_field(b"id", Shape::Integer, 6));
        assert!(kind.add_field(b"dims", Shape::Fragment, 7));
        assert!(kind.add_field(b"grid", Shape::Triple, 8));
        assert!(kind.add_field(b"kind", Shape::Text, 0));
        assert!(kind.add_field(b"rare", Shape::Null, 0));
        assert!(kind.add_field(b"older", Shape::Absent, 0));
        assert!(kind.add_field(b"last", Shape::Integer, 11));
        assert!(!kind.add_field(b"beyond", Shape::Integer, 12));
        kind.odd_flags = 1;
        kind.far_flags = 2;
        kind.far_tid = 100;
        let kind = reader.add_kind(kind);
        reader.add_category(b"op", Some(kind));
        reader.add_category(b"flow", None);
        reader
    }

    fn batch(reader: &mut Reader, text: &str) -> Result<Counts, Refused> {
        reader.batch(text.as_bytes(), 100, 1 << 60, None)
    }

    const PLAIN: &str = r#"{"ph":"X","cat":"op","name":"a\"b","pid":1,"tid":"stream 7","ts":1.5,
        "dur":2,"args":{"id":-3,"more":{"x":[1]},"dims":[[2],[]],"grid":[1,2,3],"kind":"k"}}"#;

    #[test]
    fn plain_events_become_rows() {
        let mut reader = reader();
        let text = format!(r#"[{PLAIN}, {{"cat":"flow"}},{{"ph":"M"}}]"#);
        let counts = batch(&mut reader, &text).unwrap();
        assert_eq!(counts, Counts { events: 3, taken: 2, has_fraction: true });
        let expected = [100, 1500, 2000, 0, 1, 7, -3, 0, 1, 2, 3, NULL];
        assert_eq!(reader.rows(0), expected);
        assert_eq!(reader.tables[0].texts(), br#"a\"b"#);
        assert_eq!(reader.tables[2].texts(), b"[[2],[]]");
        assert_eq!((&*reader.rest, &*reader.rest_places), (&br#"[{"ph":"M"}]"#[..], &[102][..]));
        reader.roll_back();
        assert!(reader.rows(0).is_empty());
    }

    #[test]
    fn members_may_stand_in_any_order() {
        let mut reader = reader();
        let text = r#"[{"args":{"last":5,"id":4},"ts":1,"tid":2,"pid":3,"dur":0,"name":"n",
            "cat":"op","ph":"X"}]"#;
        assert_eq!(batch(&mut reader, text).unwrap().taken, 1);
        let expected = [100, 1000, 0, 0, 3, 2, 4, NULL, NULL, NULL, NULL, 5];
        assert_eq!(reader.rows(0), expected);
    }

    #[test]
    fn what_was_met_before_changes_nothing() {
        let changes = [
            ("", ""),
            (r#""pid":1"#, r#""pid" : 1"#),
            (r#""pid":1"#, "\n \"pid\":\t1"),
            (r#""pid":1"#, r#""pid":  1"#),
            (r#""pid":1"#, r#""tid":1"#),
            (r#""pid":1"#, r#""p\u0069d":1"#),
            (r#""pid":1,"#, r#""pid":1,"x":{"pid":2},"#),
            (r#""pid":1,"#, r#""pid":1,,"#),
            (r#""pid":1,"#, r#""pid":1 "#),
            (r#""pid":1,"#, r#""pid":,"#),
            (r#""ph":"X","#, ""),
            (r#""ph":"X""#, r#""pH":"X","ph":"X""#),
            (r#""args":{"#, r#""args" :{ "#),
            (r#""args":{"#, r#""args":{,"#),
            (r#""args":{"#, r#""args":{"y":{"id":5},"#),
            (r#""id":-3,"#, ""),
            (r#""id":-3"#, r#""last":-3"#),
            (r#""id":-3"#, r#""i\u0064":-3"#),
            (r#""kind":"k"}"#, r#""kind":"k",}"#),
            (r#""kind":"k"}}"#, r#""kind":"k"} }"#),
            (r#""kind":"k"}}"#, r#""kind":"k"},}"#),
        ];
        let told = |reader: &mut Reader, text: &str| {
            let counts = batch(reader, &format!("[{text}]"));
            let told = (counts, reader.rows(0).to_vec(), reader.rest.clone());
            reader.roll_back();
            told
        };
        let mut used = reader();
        let texts = changes.map(|(from, to)| PLAIN.replacen(from, to, 1));
        for text in texts.iter().chain(texts.iter().rev()) {
            assert_eq!(told(&mut used, text), told(&mut reader(), text), "{text}");
        }
        for i in 0..1000 {
            let text = PLAIN.replace(r#""kind""#, &format!(r#""k{i}":0,"kind""#));
            assert_eq!(batch(&mut used, &format!("[{text}]")).map(|c| c.taken), Ok(1));
        }
        let kept = |leads: &[Vec<_>]| leads.iter().map(Vec::len).max();
        assert_eq!(kept(&used.kinds[0].leads.by_position), Some(MAX_LEADS));
    }

    #[test]
    fn whatever_is_not_of_the_shape_is_handed_back() {
        let changes = [
            (r#""ph":"X""#, r#""ph":"B""#),
            (r#""ph":"X","#, ""),
            (r#""cat":"op""#, r#""cat":"other""#),
            (r#""cat":"op""#, r#""cat":"op","cat":"op""#),
            (r#""name":"a\"b""#, r#""name":"\u00e9""#),
            (r#""name":"a\"b","#, ""),
            (r#""name":"a\"b""#, r#""name":null"#),
            (r#""pid":1"#, r#""pid":1.0"#),
            (r#""pid":1"#, r#""p\u0069d":1"#),
            (r#""pid":1"#, r#""pid":-9223372036854775808"#),
            ("\"stream 7\"", "\"thread 7\""),
            ("\"stream 7\"", "\"\""),
            ("\"stream 7\"", "null"),
            (r#""ts":1.5"#, r#""ts":"1.5""#),
            (r#""ts":1.5"#, r#""ts":0"#),
            (r#""ts":1.5"#, r#""ts":1e3"#),
            (r#""ts":1.5"#, r#""ts":1.0005"#),
            (r#""ts":1.5"#, r#""ts":1152921504606847"#),
            (r#""dur":2,"#, ""),
            (r#""dur":2"#, r#""dur":null"#),
            (r#""dur":2"#, r#""dur":-2"#),
            (r#""dur":2"#, r#""dur":86400000001"#),
            (r#""dur":2"#, r#""dur":2,"dur":2"#),
            (r#""id":-3"#, r#""id":3.0"#),
            (r#""id":-3"#, r#""id":"3""#),
            (r#""id":-3"#, r#""id":-3,"id":-3"#),
            (r#""id":-3"#, r#""id":9223372036854775808"#),
            (r#""id":-3"#, r#""i\u0064":-3"#),
            (r#""kind":"k""#, r#""kind":1"#),
            (r#""kind":"k""#, r#""rare":0"#),
            (r#""kind":"k""#, r#""older":null"#),
            ("[1,2,3]", "[1,2]"),
            ("[1,2,3]", "[1,2,3,4]"),
            ("[1,2,3]", "[1,2,2147483648]"),
            ("[1,2,3]", "[1,[2],3]"),
            ("[1,2,3]", "{}"),
        ];
        for (from, to) in changes {
            assert!(PLAIN.contains(from), "{from}");
            let mut reader = reader();
            let text = PLAIN.replace(from, to);
            let counts = batch(&mut reader, &format!("[{text}]")).expect(to);
            assert_eq!((counts.events, counts.taken), (1, 0), "{to}");
            assert_eq!(reader.rest, format!("[{text}]").as_bytes(), "{to}");
            assert!(reader.rows(0).is_empty());
        }
        for (from, to) in [(r#""kind":"k""#, r#""rare":null"#), (r#""id":-3"#, r#""id":null"#)] {
            let text = PLAIN.replace(from, to);
            assert_eq!(batch(&mut reader(), &format!("[{text}]")).unwrap().taken, 1, "{to}");
        }
    }

    #[test]
    fn names_may_be_said_to_be_odd() {
        let mut reader = reader();
        let text = format!("[{PLAIN}]");
        assert_eq!(batch(&mut reader, &text).unwrap().taken, 1);
        reader.tables[0].set_flags(0, 1);
        assert_eq!(batch(&mut reader, &text).unwrap().taken, 0);
        reader.tables[0].set_flags(0, 2);
        assert_eq!(batch(&mut reader, &text).unwrap().taken, 1);
        let far = text.replace("\"stream 7\"", "100");
        assert_eq!(batch(&mut reader, &far).unwrap().taken, 0);
    }

    #[test]
    fn text_that_is_not_json_leaves_nothing() {
        let mut reader = reader();
        let text = format!("[{PLAIN}]");
        batch(&mut reader, &text).unwrap();
        let kept = reader.rows(0).to_vec();
        for end in 0..text.len() {
            let Some(cut) = text.get(..end) else { continue };
            assert_eq!(batch(&mut reader, cut), Err(Refused));
            assert_eq!(batch(&mut reader, &format!("[{PLAIN},{cut}]")), Err(Refused), "{cut}");
            assert_eq!(reader.rows(0), kept);
        }
        for text in ["", "[", "[,]", "[{}] x", "{}", "[{},]", "[{\"a\":1,}]"] {
            assert_eq!(batch(&mut reader, text), Err(Refused), "{text}");
        }
        assert_eq!(reader.batch(b"[{\"a\":\"\xff\"}]", 0, 1, None), Err(Refused));
        let counts = batch(&mut reader, " [ ] ").unwrap();
        assert_eq!(counts, Counts::default());
        assert_eq!(batch(&mut reader, "[1,\"a\",{}]").unwrap().events, 3);
        assert_eq!(reader.rest, b"[1,\"a\",{}]");
    }

    #[test]
    fn a_long_batch_is_refused_where_python_cuts_elsewhere() {
        let mut reader = reader();
        // Events begin at 1, 20 and 48, and a part must hold the beginning of one.
        let text = br#"[{"cat":"flow"},    {"cat":"flow","x":[12345]}, {"cat":"flow"}]"#;
        for (next, every, is_taken) in
            [(40, 20, true), (40, 19, false), (16, 40, true), (16, 15, false), (40, 0, false)]
        {
            let cuts = Some(Cuts { next, every });
            let counts = reader.batch(text, 0, 1 << 60, cuts);
            assert_eq!(counts.is_ok(), is_taken, "{next} {every}");
        }
        for (count, is_taken) in [(5, true), (6, false)] {
            let list = format!("[{}]", vec!["{}"; count + 1].join(", "));
            let words = format!("\"{}\"", "}, {".repeat(count));
            for inner in [list, words] {
                let text = format!("[{{\"cat\":\"flow\",\"x\":{inner}}}]");
                let cuts = |next| Some(Cuts { next, every: 1000 });
                let counts = reader.batch(text.as_bytes(), 0, 1 << 60, cuts(text.len() - 2));
                assert_eq!(counts.is_ok(), is_taken, "{text}");
                assert!(reader.batch(text.as_bytes(), 0, 1 << 60, cuts(text.len() + 2)).is_ok());
                assert!(batch(&mut reader, &text).is_ok());
            }
        }
        assert_eq!(boundaries(b"{{{{{{{{{{}}}}}} \x0b,\r\n{} , x}, {},,{}"), 2);
    }
}
