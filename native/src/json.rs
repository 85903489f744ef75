//! A strict JSON scanner over bytes that are known to be UTF-8.
//!
//! It accepts no more than RFC 8259 does, and less: what is nested deeper than [`MAX_DEPTH`] is
//! refused. Nothing recurses.

/// The text is not JSON, or none that is taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused;

/// Nesting of a value that is passed over.
pub const MAX_DEPTH: u32 = 64;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// What a string's text holds besides plain characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Escapes {
    /// The text is its value.
    None,
    /// Escapes of one character.
    Short,
    /// `\u` among them.
    Unicode,
}

/// A number as the text has it.
#[derive(Clone, Copy, Debug)]
pub struct Number<'a> {
    /// Its text.
    pub text: &'a [u8],
    /// Digits before the point.
    pub whole_digits: usize,
    /// Their value if they are 18 at most.
    whole: u64,
    /// Digits behind the point; 0 where there is none.
    pub fraction_digits: usize,
    /// Their value if they are 18 at most.
    fraction: u64,
    /// Whether it has an exponent.
    pub has_exponent: bool,
}

impl Number<'_> {
    /// Its value if it is written as an integer of 64 bits; none for a negative zero.
    pub fn integer(&self) -> Option<i64> {
        if self.fraction_digits > 0 || self.has_exponent {
            return None;
        }
        let is_negative = self.text.first() == Some(&b'-');
        if self.whole_digits <= MAX_DIGITS {
            let value = i64::try_from(self.whole).ok()?;
            return if is_negative { (value > 0).then_some(-value) } else { Some(value) };
        }
        std::str::from_utf8(self.text).ok()?.parse().ok()
    }

    /// Nanoseconds of microseconds, exactly; none if negative, inexact or beyond 64 bits.
    pub fn nanoseconds(&self) -> Option<i64> {
        if self.has_exponent || self.whole_digits > 16 || self.text.first() == Some(&b'-') {
            return None;
        }
        let whole = i64::try_from(self.whole).ok()?.checked_mul(1000)?;
        let fraction = match self.fraction_digits {
            0 => 0,
            1 => self.fraction * 100,
            2 => self.fraction * 10,
            3 => self.fraction,
            _ => {
                let digits = self.text.get(self.whole_digits + 1..)?;
                let (kept, below) = digits.split_at_checked(3)?;
                if below.iter().any(|&digit| digit != b'0') {
                    return None;
                }
                kept.iter().fold(0, |value, digit| value * 10 + u64::from(digit & 15))
            }
        };
        whole.checked_add(i64::try_from(fraction).ok()?)
    }
}

/// Digits whose value is kept.
const MAX_DIGITS: usize = 18;

/// A place in a text.
pub struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The beginning of a text.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Bytes before this place.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Go to a place that was passed before.
    pub fn back_to(&mut self, at: usize) {
        self.at = at;
    }

    /// The text from a place to here.
    pub fn since(&self, start: usize) -> &'a [u8] {
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// Whether nothing but white space follows.
    pub fn is_at_end(&mut self) -> bool {
        self.space();
        self.at == self.text.len()
    }

    /// The next byte; 0, which no JSON holds, at the end.
    #[inline]
    pub fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    /// Pass over white space.
    #[inline]
    pub fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    /// Pass over a byte if it comes next.
    #[inline]
    pub fn has(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == byte;
        self.at += usize::from(is_next);
        is_next
    }

    /// Pass over a byte, which must come next.
    #[inline]
    pub fn expect(&mut self, byte: u8) -> Result<(), Refused> {
        if self.has(byte) {
            Ok(())
        } else {
            Err(Refused)
        }
    }

    /// Pass over a word if it comes next.
    pub fn has_word(&mut self, word: &[u8]) -> bool {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let is_next = rest.starts_with(word);
        if is_next {
            self.at += word.len();
        }
        is_next
    }

    /// The text between the quotes of a string.
    #[inline]
    pub fn string(&mut self) -> Result<(&'a [u8], Escapes), Refused> {
        self.expect(b'"')?;
        let start = self.at;
        let mut escapes = Escapes::None;
        loop {
            self.pass_plain();
            match self.peek() {
                b'"' => {
                    let found = self.since(start);
                    self.at += 1;
                    return Ok((found, escapes));
                }
                b'\\' => {
                    self.at += 1;
                    let one = self.escape()?;
                    if one > escapes {
                        escapes = one;
                    }
                }
                0..=0x1f => return Err(Refused),
                _ => self.at += 1,
            }
        }
    }

    /// Pass over characters of a string, eight at a time, up to one that may be special.
    #[inline]
    fn pass_plain(&mut self) {
        while let Some((word, _)) =
            self.text.get(self.at..).and_then(<[u8]>::split_first_chunk::<8>)
        {
            let word = u64::from_le_bytes(*word);
            let controls = word.wrapping_sub(ONES * 0x20) & !word;
            let special = (controls | zeros(word ^ (ONES * 0x22)) | zeros(word ^ (ONES * 0x5c)))
                & HIGHS;
            if special != 0 {
                self.at += special.trailing_zeros() as usize / 8;
                return;
            }
            self.at += 8;
        }
    }

    fn escape(&mut self) -> Result<Escapes, Refused> {
        let letter = self.peek();
        self.at += 1;
        match letter {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(Escapes::Short),
            b'u' => {
                let is_whole = match self.hexadecimal()? {
                    0xd800..=0xdbff => {
                        self.has_word(b"\\u") && (0xdc00..=0xdfff).contains(&self.hexadecimal()?)
                    }
                    0xdc00..=0xdfff => false,
                    _ => true,
                };
                if is_whole {
                    Ok(Escapes::Unicode)
                } else {
                    Err(Refused) // half of a character is no text, as Python's reader has it too
                }
            }
            _ => Err(Refused),
        }
    }

    /// Four hexadecimal digits.
    fn hexadecimal(&mut self) -> Result<u32, Refused> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = char::from(self.peek()).to_digit(16).ok_or(Refused)?;
            value = value * 16 + digit;
            self.at += 1;
        }
        Ok(value)
    }

    /// Pass over a text if it comes next, and the white space behind it.
    #[inline]
    pub fn has_text(&mut self, text: &[u8]) -> bool {
        let next = self.text.get(self.at..).and_then(|rest| rest.get(..text.len()));
        let is_next = next.is_some_and(|next| are_equal(next, text));
        if is_next {
            self.at += text.len();
            self.space();
        }
        is_next
    }

    /// The next bytes, if so many are left.
    #[inline]
    pub fn ahead<const N: usize>(&self) -> Option<&'a [u8; N]> {
        self.text.get(self.at..).and_then(<[u8]>::first_chunk)
    }

    /// A key and the colon behind it.
    #[inline]
    pub fn key(&mut self) -> Result<(&'a [u8], Escapes), Refused> {
        let key = self.string()?;
        self.space();
        self.expect(b':')?;
        self.space();
        Ok(key)
    }

    /// Pass over digits; how many, and their value if they are `MAX_DIGITS` at most.
    #[inline]
    fn digits(&mut self) -> (usize, u64) {
        let start = self.at;
        let mut value: u64 = 0;
        while let Some((word, _)) =
            self.text.get(self.at..).and_then(<[u8]>::split_first_chunk::<8>)
        {
            let (count, part) = first_digits(u64::from_le_bytes(*word));
            value = value.wrapping_mul(POWERS[count]).wrapping_add(part);
            self.at += count;
            if count < 8 {
                return (self.at - start, value);
            }
        }
        while self.peek().is_ascii_digit() {
            value = value.wrapping_mul(10).wrapping_add(u64::from(self.peek() & 15));
            self.at += 1;
        }
        (self.at - start, value)
    }

    /// The value of a number that is written as an integer of 64 bits, none of another.
    #[inline]
    pub fn integer(&mut self) -> Result<Option<i64>, Refused> {
        // Most are short and nothing follows that could belong to one.
        if let Some((word, _)) =
            self.text.get(self.at..).and_then(<[u8]>::split_first_chunk::<8>)
        {
            let (count, value) = first_digits(u64::from_le_bytes(*word));
            let is_whole = matches!(word.get(count), Some(b',' | b'}' | b']'));
            if count > 0 && is_whole && (word[0] != b'0' || count == 1) {
                self.at += count;
                return Ok(i64::try_from(value).ok());
            }
        }
        Ok(self.number()?.integer())
    }

    /// Nanoseconds of a number of microseconds, as `Number::nanoseconds` has them.
    #[inline]
    pub fn nanoseconds(&mut self) -> Result<Option<i64>, Refused> {
        // Nearly all are plain; a `Number` of those would be written to memory and read again.
        let start = self.at;
        let has_zero = self.peek() == b'0';
        let (whole_digits, whole) = self.digits();
        let mut fraction = Some(0);
        if self.has(b'.') {
            fraction = match self.digits() {
                (1, tenths) => Some(tenths * 100),
                (2, hundredths) => Some(hundredths * 10),
                (3, thousandths) => Some(thousandths),
                _ => None,
            };
        }
        let is_whole = matches!(whole_digits, 1..=16) && (!has_zero || whole_digits == 1);
        if let (Some(fraction), true) = (fraction, is_whole) {
            if !matches!(self.peek(), b'e' | b'E') {
                return Ok(i64::try_from(whole * 1000 + fraction).ok());
            }
        }
        self.at = start;
        Ok(self.number()?.nanoseconds())
    }

    /// A number.
    #[inline]
    pub fn number(&mut self) -> Result<Number<'a>, Refused> {
        let start = self.at;
        self.has(b'-');
        let has_zero = self.peek() == b'0';
        let (whole_digits, whole) = self.digits();
        if whole_digits == 0 || (has_zero && whole_digits > 1) {
            return Err(Refused);
        }
        let (mut fraction_digits, mut fraction) = (0, 0);
        if self.has(b'.') {
            (fraction_digits, fraction) = self.digits();
            if fraction_digits == 0 {
                return Err(Refused);
            }
        }
        let has_exponent = self.has(b'e') || self.has(b'E');
        if has_exponent {
            if !self.has(b'+') {
                self.has(b'-');
            }
            if self.digits().0 == 0 {
                return Err(Refused);
            }
        }
        let text = self.since(start);
        Ok(Number { text, whole_digits, whole, fraction_digits, fraction, has_exponent })
    }

    /// Pass over any value; returns its text.
    pub fn value(&mut self) -> Result<&'a [u8], Refused> {
        let start = self.at;
        let mut are_objects: u64 = 0;
        let mut depth = 0;
        loop {
            match self.peek() {
                b'"' => {
                    self.string()?;
                }
                b'-' | b'0'..=b'9' => {
                    self.integer()?;
                }
                open @ (b'{' | b'[') => {
                    self.at += 1;
                    self.space();
                    let is_object = open == b'{';
                    if !self.has(if is_object { b'}' } else { b']' }) {
                        depth += 1;
                        if depth > MAX_DEPTH {
                            return Err(Refused);
                        }
                        are_objects = are_objects << 1 | u64::from(is_object);
                        if is_object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                _ => {
                    if !(self.has_word(b"null") || self.has_word(b"true") || self.has_word(b"false"))
                    {
                        return Err(Refused);
                    }
                }
            }
            loop {
                if depth == 0 {
                    return Ok(self.since(start));
                }
                self.space();
                let is_object = are_objects & 1 == 1;
                if self.has(b',') {
                    self.space();
                    if is_object {
                        self.key()?;
                    }
                    break;
                }
                self.expect(if is_object { b'}' } else { b']' })?;
                depth -= 1;
                are_objects >>= 1;
            }
        }
    }
}

/// Whether two texts of one length are equal: short ones, without a call.
#[inline]
fn are_equal(one: &[u8], other: &[u8]) -> bool {
    let (Some(one_end), Some(other_end)) = (one.last_chunk::<8>(), other.last_chunk::<8>()) else {
        return one == other;
    };
    let mut words = one.chunks_exact(8).zip(other.chunks_exact(8));
    words.all(|(a, b)| a == b) && one_end == other_end
}

const POWERS: [u64; 9] =
    [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// How many of eight characters are digits before any other, and their value.
#[inline]
fn first_digits(word: u64) -> (usize, u64) {
    let digits = word ^ (ONES * 0x30);
    let others = (digits.wrapping_add(ONES * 0x76) | digits) & HIGHS;
    match others.trailing_zeros() / 8 {
        0 => (0, 0),
        count => (count as usize, eight_digits(digits << (64 - 8 * count))),
    }
}

/// The value of eight digits, one a byte, the first in the lowest.
#[inline]
fn eight_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let high = (pairs & 0xff_0000_00ff).wrapping_mul(100 + (1_000_000 << 32));
    let low = (pairs >> 16 & 0xff_0000_00ff).wrapping_mul(1 + (10_000 << 32));
    high.wrapping_add(low) >> 32
}

/// The high bit of each byte that is zero; of others only behind a zero.
#[inline]
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number<'_> {
        let mut cursor = Cursor::new(text.as_bytes());
        let number = cursor.number().unwrap();
        assert!(cursor.is_at_end());
        number
    }

    #[test]
    fn microseconds_are_nanoseconds_exactly() {
        assert_eq!(number("1732700000123456.789").nanoseconds(), Some(1732700000123456789));
        assert_eq!(number("0.1").nanoseconds(), Some(100));
        assert_eq!(number("12.34").nanoseconds(), Some(12340));
        assert_eq!(number("7").nanoseconds(), Some(7000));
        assert_eq!(number("7.12500").nanoseconds(), Some(7125));
        for inexact in ["7.1255", "1e3", "-1", "9223372036854776", "12345678901234567", "1.5e0"] {
            assert_eq!(number(inexact).nanoseconds(), None, "{inexact}");
        }
    }

    #[test]
    fn a_plain_number_of_microseconds_is_the_same_as_any() {
        let wholes = ["0", "7", "00", "07", "", "-1", "1305518021670", "1732700000123456"];
        let wider = ["9999999999999999", "9223372036854775", "9223372036854776", "12345678901234567"];
        let ends = ["", ".", ".5", ".25", ".125", ".1255", ".1250", ".000", "e3", "E", ".5e1", "x"];
        for whole in wholes.iter().chain(&wider) {
            for end in ends {
                for tail in [",", "}, and so on and on", ""] {
                    let text = format!("{whole}{end}{tail}");
                    let (mut one, mut other) =
                        (Cursor::new(text.as_bytes()), Cursor::new(text.as_bytes()));
                    let expected = other.number().map(|number| number.nanoseconds());
                    assert_eq!(one.nanoseconds(), expected, "{text}");
                    assert!(expected.is_err() || one.at() == other.at(), "{text}");
                }
            }
        }
    }

    #[test]
    fn integers_are_of_64_bits() {
        assert_eq!(number("9223372036854775807").integer(), Some(i64::MAX));
        assert_eq!(number("-9223372036854775808").integer(), Some(i64::MIN));
        assert_eq!(number("-12").integer(), Some(-12));
        let digits = "123456789012345678901";
        for count in 1..=18 {
            for end in ["", ",", "}, {", " 0123456789", "}}}}}}}}}}}", "\u{e9}\u{e9}\u{e9}\u{e9}"] {
                let text = digits[..count].to_owned() + end;
                let read = Cursor::new(text.as_bytes()).number().unwrap();
                let expected = digits[..count].parse().ok();
                assert_eq!(read.integer(), expected);
                let mut cursor = Cursor::new(text.as_bytes());
                assert_eq!(cursor.integer(), Ok(expected));
                assert_eq!(cursor.at(), count);
                let text = format!("7.{text}");
                let time = Cursor::new(text.as_bytes()).number().unwrap().nanoseconds();
                assert_eq!(time, [7100, 7120, 7123].get(count - 1).copied());
            }
        }
        for (text, value) in [("0,", Ok(Some(0))), ("-0,", Ok(None)), ("-7,", Ok(Some(-7)))] {
            assert_eq!(Cursor::new((text.to_owned() + "12345678").as_bytes()).integer(), value);
        }
        for text in ["01,", "1.5,", "1e5,", "a,", "1.,", "1e,"] {
            let (read, whole) = (text.to_owned() + "12345678", text.trim_end_matches(','));
            let expected = Cursor::new(whole.as_bytes()).number().map(|n| n.integer());
            assert_eq!(Cursor::new(read.as_bytes()).integer(), expected, "{text}");
        }
        assert_eq!(number("7.125000000000000000000000000").nanoseconds(), Some(7125));
        for other in ["9223372036854775808", "1.0", "1e1", "-0"] {
            assert_eq!(number(other).integer(), None, "{other}");
        }
    }

    #[test]
    fn values_are_strictly_json() {
        let whole = [
            "{}", "[]", "[1,[2,{\"a\":[{}]}],null]", "\"a\\u00e9\\n\\ud83d\\ude00\"", "-0.5e+3", "true",
            "{\"a\" : 1 ,\n\"b\":[ ]}",
        ];
        for text in whole {
            let mut cursor = Cursor::new(text.as_bytes());
            assert_eq!(cursor.value(), Ok(text.as_bytes()), "{text}");
        }
        let refused = [
            "", "{", "[1,]", "{,}", "{\"a\"}", "{\"a\":}", "[1 2]", "01", "1.", ".5", "+1", "1e",
            "\"a", "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"\\x\"", "\"\\u12g4\"", "\"a\nb\"", "nul", "NaN", "[}", "{\"a\":1]", "{1:2}",
            "{\"a\":1,}", "'a'", "\"\u{1}\"", "-",
        ];
        for text in refused {
            let mut cursor = Cursor::new(text.as_bytes());
            assert_eq!(cursor.value(), Err(Refused), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(Cursor::new(nested(64).as_bytes()).value().is_ok());
        assert!(Cursor::new(nested(66).as_bytes()).value().is_err());
    }

    #[test]
    fn special_characters_are_found_wherever_they_stand() {
        for before in 0..20 {
            let plain = "é".repeat(before / 2) + &"a".repeat(before % 2);
            for (inside, escapes) in [("", Escapes::None), ("\\\"", Escapes::Short)] {
                let text = format!("\"{plain}{inside}z\" tail and more");
                let mut cursor = Cursor::new(text.as_bytes());
                let expected = format!("{plain}{inside}z");
                assert_eq!(cursor.string(), Ok((expected.as_bytes(), escapes)));
            }
            let broken = format!("\"{plain}\u{1f}z\" tail and more");
            assert_eq!(Cursor::new(broken.as_bytes()).string(), Err(Refused));
        }
    }
}
