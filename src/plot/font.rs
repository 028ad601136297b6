//! Type: the embedded fonts, the width of a text, its lines within a width, and where each glyph goes.
//!
//! Glyphs are placed at fractions of a pixel with their own left bearings and kerning. Sizes are em sizes in pixels of
//! the finished picture.

use ab_glyph::{Font, FontRef, Glyph, PxScale, ScaleFont, point};

use super::PlotError;

/// A size and a weight of type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Type {
    /// Em size in pixels.
    pub size: f64,
    /// Bold instead of regular.
    pub bold: bool,
}

impl Type {
    /// Regular type of `size` pixels.
    pub const fn regular(size: f64) -> Self {
        Self { size, bold: false }
    }

    /// Bold type of `size` pixels.
    pub const fn bold(size: f64) -> Self {
        Self { size, bold: true }
    }

    /// Height of a capital letter in pixels.
    pub fn cap_height(self) -> f64 {
        0.73 * self.size
    }

    /// Distance between two lines in pixels.
    pub fn line_height(self) -> f64 {
        1.28 * self.size
    }
}

/// The embedded fonts.
pub(super) struct Fonts {
    regular: FontRef<'static>,
    bold: FontRef<'static>,
}

impl Fonts {
    /// Parses the fonts that are part of the program.
    pub fn embedded() -> Result<Self, PlotError> {
        let regular = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/DejaVuSans-subset.ttf"));
        let bold = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/DejaVuSans-Bold-subset.ttf"));
        Ok(Self { regular: FontRef::try_from_slice(regular)?, bold: FontRef::try_from_slice(bold)? })
    }

    /// The font of that weight.
    pub fn face(&self, bold: bool) -> &FontRef<'static> {
        if bold { &self.bold } else { &self.regular }
    }

    /// The glyphs of one line, the pen starting at (0, 0) on the baseline, and the width of the line; `scale` pixels
    /// of the buffer make one pixel of the picture, and all positions are in pixels of the buffer.
    pub fn glyphs(&self, text: &str, kind: Type, scale: f64) -> (Vec<Glyph>, f64) {
        let face = self.face(kind.bold);
        let units_per_em = face.units_per_em().unwrap_or_else(|| face.height_unscaled());
        // ab_glyph scales by the height of a line; we name type by its em.
        let line_per_em = f64::from(face.height_unscaled() / units_per_em);
        let px_scale = PxScale::from((kind.size * scale * line_per_em) as f32);
        let scaled = face.as_scaled(px_scale);
        let mut glyphs = Vec::with_capacity(text.len());
        let mut pen = 0.0_f32;
        let mut previous = None;
        for letter in text.chars() {
            let id = scaled.glyph_id(letter);
            if let Some(previous) = previous {
                pen += scaled.kern(previous, id);
            }
            glyphs.push(id.with_scale_and_position(px_scale, point(pen, 0.0)));
            pen += scaled.h_advance(id);
            previous = Some(id);
        }
        (glyphs, f64::from(pen))
    }

    /// Width of one line in pixels of the picture.
    pub fn width(&self, text: &str, kind: Type) -> f64 {
        self.glyphs(text, kind, 1.0).1
    }

    /// Breaks `text` into at most `max_lines` lines no wider than `max_width` pixels: at spaces if there are any, else
    /// after punctuation or within a word. What does not fit is cut and replaced by "...".
    pub fn wrap(&self, text: &str, kind: Type, max_width: f64, max_lines: usize) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for paragraph in text.lines() {
            let mut line = String::new();
            for word in paragraph.split(|c: char| c.is_whitespace() || c.is_control()) {
                if word.is_empty() {
                    continue;
                }
                let joined = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
                if self.width(&joined, kind) <= max_width {
                    line = joined;
                    continue;
                }
                if !line.is_empty() {
                    lines.push(std::mem::take(&mut line));
                }
                let mut rest = word;
                while lines.len() <= max_lines && self.width(rest, kind) > max_width {
                    let (head, tail) = rest.split_at(self.break_at(rest, kind, max_width));
                    lines.push(head.to_owned());
                    rest = tail;
                }
                line = rest.to_owned();
                if lines.len() > max_lines {
                    break;
                }
            }
            if !line.is_empty() {
                lines.push(line);
            }
            if lines.len() > max_lines {
                break;
            }
        }
        if lines.len() > max_lines {
            lines.truncate(max_lines);
            if let Some(last) = lines.last_mut() {
                self.cut(last, kind, max_width);
            }
        }
        lines
    }

    /// Where to break a word that is too wide: a byte index above 0, after punctuation if that wastes at most half.
    fn break_at(&self, word: &str, kind: Type, max_width: f64) -> usize {
        let mut fits = 0;
        let mut punctuation = 0;
        for (start, letter) in word.char_indices() {
            let end = start + letter.len_utf8();
            if fits > 0 && self.width(&word[..end], kind) > max_width {
                break;
            }
            fits = end;
            if matches!(letter, '-' | '_' | '/' | ',' | ';' | ':' | '=' | '.' | '+') {
                punctuation = end;
            }
        }
        if 2 * punctuation >= fits { punctuation } else { fits }
    }

    /// Replaces the end of `line` by "..." such that it is no wider than `max_width`.
    fn cut(&self, line: &mut String, kind: Type, max_width: f64) {
        while !line.is_empty() && self.width(&format!("{line}..."), kind) > max_width {
            line.pop();
        }
        line.truncate(line.trim_end().len());
        line.push_str("...");
    }
}
