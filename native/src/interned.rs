//! Texts as codes: equal texts have equal codes, from 0 on, across batches and files.

use std::collections::HashMap;

const FRONT: usize = 1 << 10;
const NOTHING: u32 = u32::MAX;

/// Distinct texts.
pub struct Interned {
    codes: HashMap<Box<[u8]>, u32>, // with random keys: a file cannot make them collide
    front: Vec<u32>,
    texts: Vec<u8>,
    ends: Vec<u64>,
    flags: Vec<u8>,
}

impl Default for Interned {
    fn default() -> Self {
        Self {
            codes: HashMap::new(),
            front: vec![NOTHING; FRONT],
            texts: Vec::new(),
            ends: Vec::new(),
            flags: Vec::new(),
        }
    }
}

impl Interned {
    /// The code of a text, a new one where it was not seen before; none if there are too many.
    pub fn code(&mut self, text: &[u8]) -> Option<u32> {
        // The last text with the same length and ends is nearly always the same text.
        let slot = front_slot(text);
        if let Some(&code) = self.front.get(slot) {
            if code != NOTHING && self.text(code) == text {
                return Some(code);
            }
        }
        let code = match self.codes.get(text) {
            Some(&known) => known,
            None => {
                let new = u32::try_from(self.ends.len()).ok().filter(|&c| c < 1 << 30)?;
                self.codes.insert(text.into(), new);
                self.texts.extend_from_slice(text);
                self.ends.push(self.texts.len() as u64);
                self.flags.push(0);
                new
            }
        };
        if let Some(kept) = self.front.get_mut(slot) {
            *kept = code;
        }
        Some(code)
    }

    fn text(&self, code: u32) -> &[u8] {
        let code = code as usize;
        let end = self.ends.get(code).copied().unwrap_or(0) as usize;
        let start = code.checked_sub(1).and_then(|c| self.ends.get(c)).copied().unwrap_or(0);
        self.texts.get(start as usize..end).unwrap_or_default()
    }

    /// All texts behind each other.
    pub fn texts(&self) -> &[u8] {
        &self.texts
    }

    /// Where each text ends in `texts`.
    pub fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// What was said of a text; 0 if nothing.
    #[inline]
    pub fn flags(&self, code: u32) -> u8 {
        self.flags.get(code as usize).copied().unwrap_or(0)
    }

    /// Say something of a text.
    pub fn set_flags(&mut self, code: u32, flags: u8) {
        if let Some(kept) = self.flags.get_mut(code as usize) {
            *kept = flags;
        }
    }
}

fn front_slot(text: &[u8]) -> usize {
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |b| u64::from_le_bytes(*b));
    let mixed = (word(text.first_chunk()) ^ (text.len() as u64) << 56)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ word(text.last_chunk()).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    let short = if text.len() < 8 {
        text.iter().fold(0u64, |hash, &b| hash.wrapping_mul(31).wrapping_add(u64::from(b)))
    } else {
        0
    };
    ((mixed ^ short.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 54) as usize % FRONT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_equal_codes() {
        let mut names = Interned::default();
        let texts: Vec<String> = (0..5000).map(|i| format!("{}name{}", i % 7, i)).collect();
        for _ in 0..2 {
            for (i, text) in texts.iter().enumerate() {
                assert_eq!(names.code(text.as_bytes()), Some(i as u32));
            }
        }
        assert_eq!(names.code(b""), Some(5000));
        assert_eq!(names.code(b""), Some(5000));
        assert_eq!(names.ends().len(), 5001);
        names.set_flags(3, 5);
        assert_eq!((names.flags(3), names.flags(4), names.flags(1 << 20)), (5, 0, 0));
    }
}
