//! Values that were passed before: a comparison of bytes takes the place of reading them again.
//!
//! An operator's shapes, types and inputs are most of its text, and few of them differ. What begins
//! with the whole text of a list, an object or a string is that very value, since such a text says
//! itself where it ends.

use crate::interned::Interned;
use crate::json::{Cursor, Refused};

/// Values of a length class that are remembered.
const SLOTS: usize = 1 << 9;
/// Bytes by which a short value is looked up, and a long one.
const SHORT_KEY: usize = 8;
const LONG_KEY: usize = 32;
/// Longest value that is looked up as a short one, and longest that is remembered.
const SHORT: usize = 24;
const LONG: usize = 1 << 10;
const NO_CODE: u32 = u32::MAX;

#[derive(Clone)]
struct Met {
    /// Nothing where none was met.
    text: Vec<u8>,
    /// Its code among the fragments, if it was asked for.
    code: u32,
}

/// The values that were met last.
pub struct Again {
    short: Vec<Met>,
    long: Vec<Met>,
}

impl Default for Again {
    fn default() -> Self {
        let none = vec![Met { text: Vec::new(), code: NO_CODE }; SLOTS];
        Self { short: none.clone(), long: none }
    }
}

impl Again {
    /// Pass over any value; returns its text. The same as `Cursor::value`.
    #[inline]
    pub fn value<'a>(&mut self, cursor: &mut Cursor<'a>) -> Result<&'a [u8], Refused> {
        self.met(cursor).map(|(text, _)| text)
    }

    /// Pass over any value; returns its code, none if there are too many.
    #[inline]
    pub fn code(
        &mut self,
        cursor: &mut Cursor<'_>,
        texts: &mut Interned,
    ) -> Result<Option<u32>, Refused> {
        let (text, met) = self.met(cursor)?;
        match met {
            Some(met) if met.code != NO_CODE => Ok(Some(met.code)),
            Some(met) => {
                let code = texts.code(text);
                met.code = code.unwrap_or(NO_CODE);
                Ok(code)
            }
            None => Ok(texts.code(text)),
        }
    }

    /// Pass over any value; its text, and where it is remembered if it is.
    #[inline]
    fn met<'a>(
        &mut self,
        cursor: &mut Cursor<'a>,
    ) -> Result<(&'a [u8], Option<&mut Met>), Refused> {
        let is_closed = matches!(cursor.peek(), b'[' | b'{' | b'"');
        let (Some(key), true) = (cursor.ahead::<LONG_KEY>(), is_closed) else {
            return cursor.value().map(|text| (text, None));
        };
        let (short_at, long_at) = (slot(&key[..SHORT_KEY]), slot(key));
        let (Some(short), Some(long)) = (self.short.get_mut(short_at), self.long.get_mut(long_at))
        else {
            return Err(Refused);
        };
        let start = cursor.at();
        if !short.text.is_empty() && cursor.has_word(&short.text) {
            return Ok((cursor.since(start), Some(short)));
        }
        if !long.text.is_empty() && cursor.has_word(&long.text) {
            return Ok((cursor.since(start), Some(long)));
        }
        let text = cursor.value()?;
        if text.len() > LONG {
            return Ok((text, None));
        }
        let met = if text.len() <= SHORT { short } else { long };
        met.text.clear();
        met.text.extend_from_slice(text);
        met.code = NO_CODE;
        Ok((text, Some(met)))
    }
}

#[inline]
fn slot(key: &[u8]) -> usize {
    let mixed = key.chunks_exact(8).fold(0u64, |mixed, word| {
        let word = word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        (mixed.rotate_left(25) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (mixed >> 55) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: &str = ", \"and\": \"what follows is long enough\"";

    #[test]
    fn a_value_is_the_same_whether_it_was_met_or_not() {
        let mut values = vec![
            "[]".to_owned(), "[[]]".into(), "[[], []]".into(), "{}".into(), "\"\"".into(),
            "\"a\\\"b\"".into(), "\"a\\\\\"".into(), "12".into(), "-1.5e3".into(), "null".into(),
            "[1, 2]".into(), "[1, 21]".into(), "{\"a\": [\"]\"]}".into(), "\"\u{e9}\"".into(),
            format!("[{}1]", "1, ".repeat(8)), format!("[{}]", "1, ".repeat(400) + "1"),
        ];
        values.extend((0..2000).map(|i| format!("[[512, 128, {i}], [\"{}\"]]", i % 7)));
        let mut again = Again::default();
        let mut texts = Interned::default();
        for round in 0..3 {
            for value in values.iter().chain(values.iter().rev()) {
                let text = value.to_owned() + TAIL;
                let mut cursor = Cursor::new(text.as_bytes());
                assert_eq!(again.value(&mut cursor), Ok(value.as_bytes()), "{round}");
                assert_eq!(cursor.at(), value.len());
                let mut cursor = Cursor::new(text.as_bytes());
                let code = again.code(&mut cursor, &mut texts);
                assert_eq!(code, Ok(texts.code(value.as_bytes())));
                assert_eq!(cursor.at(), value.len());
            }
        }
    }

    #[test]
    fn what_is_no_value_is_refused_though_one_like_it_was_met() {
        let mut again = Again::default();
        let read = |again: &mut Again, text: &str| {
            again.value(&mut Cursor::new((text.to_owned() + TAIL).as_bytes())).is_ok()
        };
        assert!(read(&mut again, "[[1, 2], [3]]") && read(&mut again, "\"abc\""));
        for broken in ["[[1, 2], [3]", "[[1, 2, [3]]", "[,]", "[1,]", "\"ab\u{1}c\"", "{\"a\"}"] {
            assert!(!read(&mut again, broken), "{broken}");
        }
        assert!(read(&mut again, "[[1, 2], [3]]") && read(&mut again, "\"abc\""));
        assert_eq!(again.value(&mut Cursor::new(b"[]")), Ok(&b"[]"[..]));
        assert_eq!(again.value(&mut Cursor::new(b"[")), Err(Refused));
    }
}
