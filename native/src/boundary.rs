//! The boundary to Python: the only unsafe code, and where panics end.
//!
//! Python owns a reader from `tk_new` to `tk_free` and calls it from one thread at a time. What
//! a call points to holds until the next call that changes the reader.
#![allow(unsafe_code)]

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

use crate::reader::{Counts, Cuts, Kind, Reader, Shape, TABLES};

/// Raised when a signature or the layout of an answer changes.
const INTERFACE: u32 = 2;
const TAKEN: i32 = 0;
const REFUSED: i32 = 1;
const FAILED: i32 = 2;

/// What a batch held, and where the rest of it lies.
#[repr(C)]
pub struct Answer {
    events: u64,
    taken: u64,
    has_fraction: u64,
    rest: *const u8,
    rest_bytes: u64,
    rest_places: *const i64,
    rest_count: u64,
    texts: [u64; TABLES],
}

/// Numbers or bytes in memory of the reader.
#[repr(C)]
pub struct View {
    data: *const u8,
    count: u64,
}

impl View {
    fn of<T>(values: &[T]) -> Self {
        Self { data: values.as_ptr().cast(), count: values.len() as u64 }
    }
}

/// Run what may panic; the answer where it does.
fn guarded<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(otherwise)
}

/// Bytes that Python lends for a call.
///
/// # Safety
/// `data` must point to `count` readable bytes that nobody writes meanwhile.
unsafe fn lent<'a>(data: *const u8, count: u64) -> &'a [u8] {
    match usize::try_from(count) {
        Ok(count) if count > 0 && !data.is_null() => unsafe { slice::from_raw_parts(data, count) },
        _ => &[],
    }
}

/// Which interface this is.
#[no_mangle]
pub extern "C" fn tk_interface() -> u32 {
    INTERFACE
}

/// A new reader; to be freed.
#[no_mangle]
pub extern "C" fn tk_new() -> *mut Reader {
    // Python reads what made this one panic, so nothing has to be said. The hook is this library's.
    std::panic::set_hook(Box::new(|_| {}));
    guarded(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Free a reader.
///
/// # Safety
/// `reader` is from `tk_new` and not freed yet.
#[no_mangle]
pub unsafe extern "C" fn tk_free(reader: *mut Reader) {
    if !reader.is_null() {
        guarded((), || drop(unsafe { Box::from_raw(reader) }));
    }
}

/// Describe a kind; its number, or -1.
///
/// `switches`: 1 a duration, 2 arguments are needed, 4 rows are kept.
///
/// # Safety
/// `reader` is from `tk_new` and not freed.
#[no_mangle]
pub unsafe extern "C" fn tk_kind(
    reader: *mut Reader,
    phase: u8,
    switches: u8,
    width: u64,
    names: u64,
    odd_flags: u8,
    far_flags: u8,
    far_tid: i64,
) -> i64 {
    let Some(reader) = (unsafe { reader.as_mut() }) else { return -1 };
    guarded(-1, || {
        let mut kind = Kind::new(phase, width as usize);
        kind.has_dur = switches & 1 != 0;
        kind.needs_args = switches & 2 != 0;
        kind.is_kept = switches & 4 != 0;
        kind.names = names as usize;
        kind.odd_flags = odd_flags;
        kind.far_flags = far_flags;
        kind.far_tid = far_tid;
        reader.add_kind(kind) as i64
    })
}

/// Describe an argument of a kind; 0, or -1 where there is no room for it.
///
/// # Safety
/// `reader` is from `tk_new` and not freed; `key` points to `count` bytes.
#[no_mangle]
pub unsafe extern "C" fn tk_field(
    reader: *mut Reader,
    kind: u64,
    key: *const u8,
    count: u64,
    shape: u8,
    column: u64,
) -> i32 {
    let Some(reader) = (unsafe { reader.as_mut() }) else { return -1 };
    let key = unsafe { lent(key, count) };
    let shape = match shape {
        0 => Shape::Integer,
        1 => Shape::Fragment,
        2 => Shape::Triple,
        3 => Shape::Text,
        4 => Shape::Null,
        _ => Shape::Absent,
    };
    guarded(-1, || {
        let kind = reader.kind_mut(kind as usize);
        let is_added = kind.is_some_and(|kind| kind.add_field(key, shape, column as usize));
        if is_added { 0 } else { -1 }
    })
}

/// A category of a kind, or of none (-1); its slot, or -1.
///
/// # Safety
/// `reader` is from `tk_new` and not freed; `name` points to `count` bytes.
#[no_mangle]
pub unsafe extern "C" fn tk_category(
    reader: *mut Reader,
    name: *const u8,
    count: u64,
    kind: i64,
) -> i64 {
    let Some(reader) = (unsafe { reader.as_mut() }) else { return -1 };
    let name = unsafe { lent(name, count) };
    guarded(-1, || reader.add_category(name, usize::try_from(kind).ok()) as i64)
}

/// Read a batch. 0: taken, see the answer; 1: refused; 2: it failed. Of the last two nothing stays.
///
/// `every` is 0 where Python would be given the whole text at once.
///
/// # Safety
/// `reader` is from `tk_new` and not freed; `text` points to `count` bytes that nobody writes
/// meanwhile; `answer` points to an `Answer`.
#[no_mangle]
pub unsafe extern "C" fn tk_batch(
    reader: *mut Reader,
    text: *const u8,
    count: u64,
    place: i64,
    limit_ns: i64,
    next_cut: u64,
    every: u64,
    answer: *mut Answer,
) -> i32 {
    let (Some(reader), Some(answer)) = (unsafe { reader.as_mut() }, unsafe { answer.as_mut() })
    else {
        return FAILED;
    };
    let text = unsafe { lent(text, count) };
    let cuts = (every > 0).then_some(Cuts { next: next_cut as usize, every: every as usize });
    let read = catch_unwind(AssertUnwindSafe(|| reader.batch(text, place, limit_ns, cuts)));
    let (status, counts) = match read {
        Ok(Ok(counts)) => (TAKEN, counts),
        Ok(Err(_)) => (REFUSED, Counts::default()),
        Err(_) => {
            guarded((), || reader.roll_back());
            (FAILED, Counts::default())
        }
    };
    *answer = Answer {
        events: counts.events,
        taken: counts.taken,
        has_fraction: u64::from(counts.has_fraction),
        rest: reader.rest.as_ptr(),
        rest_bytes: reader.rest.len() as u64,
        rest_places: reader.rest_places.as_ptr(),
        rest_count: reader.rest_places.len() as u64,
        texts: reader.tables.each_ref().map(|table| table.ends().len() as u64),
    };
    status
}

/// Forget the rows of the last batch.
///
/// # Safety
/// `reader` is from `tk_new` and not freed.
#[no_mangle]
pub unsafe extern "C" fn tk_roll_back(reader: *mut Reader) {
    if let Some(reader) = unsafe { reader.as_mut() } {
        guarded((), || reader.roll_back());
    }
}

/// Rows of a slot: how many numbers, and where.
///
/// # Safety
/// `reader` is from `tk_new` and not freed; `view` points to a `View`.
#[no_mangle]
pub unsafe extern "C" fn tk_rows(reader: *const Reader, slot: u64, view: *mut View) {
    if let (Some(reader), Some(view)) = (unsafe { reader.as_ref() }, unsafe { view.as_mut() }) {
        *view = View::of(reader.rows(slot as usize));
    }
}

/// Forget the rows of a slot.
///
/// # Safety
/// `reader` is from `tk_new` and not freed.
#[no_mangle]
pub unsafe extern "C" fn tk_clear(reader: *mut Reader, slot: u64) {
    if let Some(reader) = unsafe { reader.as_mut() } {
        guarded((), || reader.clear(slot as usize));
    }
}

/// The texts of a table, and where each ends.
///
/// # Safety
/// `reader` is from `tk_new` and not freed; `texts` and `ends` point to a `View` each.
#[no_mangle]
pub unsafe extern "C" fn tk_texts(
    reader: *const Reader,
    table: u64,
    texts: *mut View,
    ends: *mut View,
) {
    let reader = unsafe { reader.as_ref() };
    let (texts, ends) = unsafe { (texts.as_mut(), ends.as_mut()) };
    if let (Some(reader), Some(texts), Some(ends)) = (reader, texts, ends) {
        let found = reader.tables.get(table as usize);
        *texts = View::of(found.map_or(&[], |t| t.texts()));
        *ends = View::of(found.map_or(&[], |t| t.ends()));
    }
}

/// Say something of a text.
///
/// # Safety
/// `reader` is from `tk_new` and not freed.
#[no_mangle]
pub unsafe extern "C" fn tk_flag(reader: *mut Reader, table: u64, code: u32, flags: u8) {
    if let Some(reader) = unsafe { reader.as_mut() } {
        if let Some(table) = reader.tables.get_mut(table as usize) {
            table.set_flags(code, flags);
        }
    }
}
