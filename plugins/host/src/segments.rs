//! Whether a library is whole, told from its program headers. The system's loader maps what they name and does not ask
//! how long the file is; to touch what is not there then ends the process (SIGBUS). Format: System V ABI, chapter 4,
//! "ELF header", and chapter 5, "Program header".

use crate::machine::Refusal;

/// Bytes of a file that [`Headers::find`] looks at.
pub(crate) const HEADER_BYTES: usize = 64;

const CLASS: usize = 4;
const DATA: usize = 5;
/// `PT_LOAD`: the segment is mapped.
const MAPPED: u64 = 1;

/// Where a number is, and of how many bytes.
type Field = (usize, usize);

/// The fields that matter here, in one of the two classes.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    e_phoff: Field,
    e_phentsize: Field,
    e_phnum: Field,
    /// Of a program header.
    size: u64,
    p_offset: Field,
    p_filesz: Field,
}

const P_TYPE: Field = (0, 4);

const BITS_32: Layout = Layout {
    e_phoff: (28, 4),
    e_phentsize: (42, 2),
    e_phnum: (44, 2),
    size: 32,
    p_offset: (4, 4),
    p_filesz: (16, 4),
};

const BITS_64: Layout = Layout {
    e_phoff: (32, 8),
    e_phentsize: (54, 2),
    e_phnum: (56, 2),
    size: 56,
    p_offset: (8, 8),
    p_filesz: (32, 8),
};

/// The program headers of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Headers {
    layout: &'static Layout,
    big_endian: bool,
    offset: u64,
    bytes: u64,
}

impl Headers {
    /// Where they are, from the first bytes of an ELF file that has `length` bytes.
    pub(crate) fn find(header: &[u8], length: u64) -> Result<Self, Refusal> {
        let layout = if header.get(CLASS) == Some(&2) {
            &BITS_64
        } else {
            &BITS_32
        };
        let big_endian = header.get(DATA) == Some(&2);
        let field = |field| number(header, field, big_endian).ok_or(Refusal::CutShort);
        let (offset, size, count) = (
            field(layout.e_phoff)?,
            field(layout.e_phentsize)?,
            field(layout.e_phnum)?,
        );
        // Not every loader asks; one that does not would read other headers than are looked at here.
        if count > 0 && size != layout.size {
            return Err(Refusal::NotALibrary(format!(
                "its program headers have {size} bytes each, not {}",
                layout.size
            )));
        }
        // Two factors of 16 bits.
        let bytes = count * size;
        within(offset, bytes, length)?;
        Ok(Self {
            layout,
            big_endian,
            offset,
            bytes,
        })
    }

    /// Where the table of them begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length, below 4 MiB.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Judges the table of a file that has `length` bytes: all that is mapped must be in it.
    pub(crate) fn check(&self, table: &[u8], length: u64) -> Result<(), Refusal> {
        // Below 4 MiB. What is behind the table is not of it.
        let table = table.get(..self.bytes as usize).ok_or(Refusal::CutShort)?;
        // The size is that of a layout.
        for header in table.chunks_exact(self.layout.size as usize) {
            let field = |field| number(header, field, self.big_endian).ok_or(Refusal::CutShort);
            if field(P_TYPE)? == MAPPED {
                within(field(self.layout.p_offset)?, field(self.layout.p_filesz)?, length)?;
            }
        }
        Ok(())
    }
}

fn within(offset: u64, bytes: u64, length: u64) -> Result<(), Refusal> {
    let end = offset.checked_add(bytes).ok_or(Refusal::CutShort)?;
    if end <= length { Ok(()) } else { Err(Refusal::CutShort) }
}

fn number(bytes: &[u8], (at, width): Field, big_endian: bool) -> Option<u64> {
    let bytes = bytes.get(at..)?.get(..width)?;
    let digit = |number, byte: &u8| number << 8 | u64::from(*byte);
    Some(if big_endian {
        bytes.iter().fold(0, digit)
    } else {
        bytes.iter().rev().fold(0, digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 5000;
    /// Where the table of [`file`] begins.
    const TABLE: usize = 64;

    fn put(bytes: &mut [u8], (at, width): Field, big_endian: bool, value: u64) {
        let place = &mut bytes[at..at + width];
        if big_endian {
            place.copy_from_slice(&value.to_be_bytes()[8 - width..]);
        } else {
            place.copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }

    /// The beginning of a file: its header and the program headers, given as type, offset and size.
    fn file(layout: &'static Layout, big_endian: bool, segments: &[(u64, u64, u64)]) -> Vec<u8> {
        let size = layout.size as usize;
        let mut file = vec![0; TABLE + segments.len() * size];
        file[..4].copy_from_slice(b"\x7fELF");
        file[CLASS] = if *layout == BITS_64 { 2 } else { 1 };
        file[DATA] = if big_endian { 2 } else { 1 };
        put(&mut file, layout.e_phoff, big_endian, TABLE as u64);
        put(&mut file, layout.e_phentsize, big_endian, layout.size);
        put(&mut file, layout.e_phnum, big_endian, segments.len() as u64);
        for (header, (kind, offset, bytes)) in file[TABLE..].chunks_mut(size).zip(segments) {
            put(header, P_TYPE, big_endian, *kind);
            put(header, layout.p_offset, big_endian, *offset);
            put(header, layout.p_filesz, big_endian, *bytes);
        }
        file
    }

    fn check(file: &[u8], length: u64) -> Result<(), Refusal> {
        let headers = Headers::find(&file[..file.len().min(HEADER_BYTES)], length)?;
        let table = usize::try_from(headers.offset()).unwrap();
        headers.check(file.get(table..).unwrap_or_default(), length)
    }

    fn everywhere(test: impl Fn(&'static Layout, bool)) {
        for layout in [&BITS_32, &BITS_64] {
            for big_endian in [false, true] {
                test(layout, big_endian);
            }
        }
    }

    #[test]
    fn a_file_that_ends_with_its_last_segment_is_whole() {
        everywhere(|layout, big_endian| {
            let whole = file(layout, big_endian, &[(MAPPED, 0, 4096), (MAPPED, 4096, LENGTH - 4096)]);
            assert_eq!(check(&whole, LENGTH), Ok(()));
            assert_eq!(check(&whole, LENGTH - 1), Err(Refusal::CutShort));
        });
    }

    #[test]
    fn what_is_not_mapped_may_be_anywhere() {
        everywhere(|layout, big_endian| {
            let other = file(layout, big_endian, &[(MAPPED, 0, 4096), (0x6474_e551, LENGTH, LENGTH)]);
            assert_eq!(check(&other, LENGTH), Ok(()));
        });
    }

    #[test]
    fn what_is_behind_the_table_is_no_segment() {
        everywhere(|layout, big_endian| {
            let mut more = file(layout, big_endian, &[(MAPPED, 0, 1), (MAPPED, LENGTH, 1)]);
            put(&mut more, layout.e_phnum, big_endian, 1);
            assert_eq!(check(&more, LENGTH), Ok(()));
        });
    }

    #[test]
    fn a_segment_whose_end_overflows_is_not_there() {
        let most = u64::MAX;
        for (offset, bytes) in [(most, most), (most, 1), (1, most)] {
            everywhere(|layout, big_endian| {
                let huge = file(layout, big_endian, &[(MAPPED, offset, bytes)]);
                assert_eq!(check(&huge, LENGTH), Err(Refusal::CutShort));
            });
        }
    }

    #[test]
    fn a_table_behind_the_end_is_not_there() {
        for offset in [LENGTH - 1, LENGTH, u64::MAX] {
            everywhere(|layout, big_endian| {
                let mut far = file(layout, big_endian, &[(MAPPED, 0, 1)]);
                put(&mut far, layout.e_phoff, big_endian, offset);
                assert_eq!(check(&far, LENGTH), Err(Refusal::CutShort));
            });
        }
    }

    #[test]
    fn no_beginning_of_a_file_is_whole() {
        everywhere(|layout, big_endian| {
            let whole = file(layout, big_endian, &[(MAPPED, 0, 100), (MAPPED, 100, 100)]);
            for length in 0..whole.len() {
                assert_eq!(check(&whole[..length], length as u64), Err(Refusal::CutShort));
            }
        });
    }

    #[test]
    fn headers_of_another_size_are_refused_in_words() {
        everywhere(|layout, big_endian| {
            let mut odd = file(layout, big_endian, &[(MAPPED, 0, 100)]);
            put(&mut odd, layout.e_phentsize, big_endian, 7);
            let Err(Refusal::NotALibrary(reason)) = check(&odd, LENGTH) else {
                panic!("it was taken");
            };
            assert!(reason.starts_with("its program headers have 7 bytes each"), "{reason}");
        });
    }

    #[test]
    fn random_bytes_never_make_it_panic() {
        let mut random = blake3::Hasher::new().finalize_xof();
        let mut bytes = [0; 512];
        for round in 0..20_000 {
            random.fill(&mut bytes);
            let headers = Headers::find(&bytes[..round % (HEADER_BYTES + 1)], LENGTH);
            drop(headers);
            // A good header, so that its table is looked at.
            everywhere(|layout, big_endian| {
                let mut known = file(layout, big_endian, &[(0, 0, 0); 4]);
                let at = round % 40;
                known[TABLE..].copy_from_slice(&bytes[at..at + 4 * layout.size as usize]);
                let length = u64::from(bytes[500]) * 40;
                let _ = check(&known, length);
                let headers = Headers::find(&known[..HEADER_BYTES], u64::MAX).unwrap();
                let _ = headers.check(&bytes[..round % 512], length);
            });
        }
    }
}
