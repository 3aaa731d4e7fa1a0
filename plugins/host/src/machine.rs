//! What kind of machine a library is for, told from its first bytes. The loader's own words for it ("invalid ELF
//! header") help nobody. Format: System V ABI, chapter 4, "ELF header".

const MAGIC: &[u8] = b"\x7fELF";
const CLASS: usize = 4;
const DATA: usize = 5;
const SHARED_OBJECT: u16 = 3;

/// Why a header is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Not a shared library; what it is.
    NotALibrary(String),
    /// Its end is missing.
    CutShort,
    /// For `found`, not for `expected`.
    OtherMachine { found: String, expected: String },
}

/// Judges the first bytes of an ELF file, of which it looks at 20.
pub(crate) fn check(header: &[u8]) -> Result<(), Refusal> {
    if !header.starts_with(MAGIC) {
        let what = if header.is_empty() {
            "it is empty"
        } else {
            "it is no ELF file"
        };
        return Err(Refusal::NotALibrary(what.to_owned()));
    }
    let (Some(class), Some(data), Some(kind), Some(machine)) = (
        header.get(CLASS).copied(),
        header.get(DATA).copied(),
        header.get(16..18),
        header.get(18..20),
    ) else {
        return Err(Refusal::NotALibrary("it ends within its header".to_owned()));
    };
    let big_endian = data == 2;
    let found = Machine {
        bits: if class == 2 { 64 } else { 32 },
        big_endian,
        number: number(machine, big_endian),
    };
    let expected = Machine::here();
    // An architecture that this table does not know is left to the system's loader.
    if expected.number != 0 && found != expected {
        return Err(Refusal::OtherMachine {
            found: found.describe(),
            expected: expected.describe(),
        });
    }
    match number(kind, big_endian) {
        SHARED_OBJECT => Ok(()),
        1 => Err(Refusal::NotALibrary(
            "it is an object file that was not linked".to_owned(),
        )),
        2 => Err(Refusal::NotALibrary("it is a program".to_owned())),
        other => Err(Refusal::NotALibrary(format!("it is an ELF file of type {other}"))),
    }
}

fn number(bytes: &[u8], big_endian: bool) -> u16 {
    let bytes = [bytes[0], bytes[1]];
    if big_endian {
        u16::from_be_bytes(bytes)
    } else {
        u16::from_le_bytes(bytes)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Machine {
    bits: u32,
    big_endian: bool,
    number: u16,
}

impl Machine {
    fn here() -> Self {
        Self {
            bits: usize::BITS,
            big_endian: cfg!(target_endian = "big"),
            number: match std::env::consts::ARCH {
                "x86" => 3,
                "arm" => 40,
                "x86_64" => 62,
                "aarch64" => 183,
                "riscv32" | "riscv64" => 243,
                _ => 0,
            },
        }
    }

    fn describe(self) -> String {
        let name = match self.number {
            3 => "x86".to_owned(),
            20 | 21 => "PowerPC".to_owned(),
            22 => "IBM Z".to_owned(),
            40 => "ARM".to_owned(),
            62 => "x86-64".to_owned(),
            183 => "AArch64".to_owned(),
            243 => "RISC-V".to_owned(),
            258 => "LoongArch".to_owned(),
            other => format!("machine type {other}"),
        };
        let order = if self.big_endian { ", big-endian" } else { "" };
        format!("{name} ({} bits{order})", self.bits)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn header(class: u8, data: u8, kind: [u8; 2], machine: [u8; 2]) -> Vec<u8> {
        let mut header = vec![0x7f, b'E', b'L', b'F', class, data, 1, 0];
        header.extend([0; 8]);
        header.extend(kind);
        header.extend(machine);
        header
    }

    fn other(found: &str) -> Result<(), Refusal> {
        Err(Refusal::OtherMachine {
            found: found.to_owned(),
            expected: "x86-64 (64 bits)".to_owned(),
        })
    }

    fn no_library(reason: &str) -> Result<(), Refusal> {
        Err(Refusal::NotALibrary(reason.to_owned()))
    }

    #[test]
    fn a_shared_object_for_this_machine_is_taken() {
        assert_eq!(check(&header(2, 1, [3, 0], [62, 0])), Ok(()));
    }

    #[test]
    fn a_library_for_another_machine_is_refused_by_name() {
        assert_eq!(check(&header(2, 1, [3, 0], [183, 0])), other("AArch64 (64 bits)"));
        assert_eq!(check(&header(1, 1, [3, 0], [3, 0])), other("x86 (32 bits)"));
        assert_eq!(check(&header(1, 1, [3, 0], [62, 0])), other("x86-64 (32 bits)"));
        assert_eq!(
            check(&header(2, 2, [0, 3], [0, 22])),
            other("IBM Z (64 bits, big-endian)")
        );
        assert_eq!(
            check(&header(2, 1, [3, 0], [0, 9])),
            other("machine type 2304 (64 bits)")
        );
    }

    #[test]
    fn what_is_no_shared_object_is_refused() {
        assert_eq!(check(b""), no_library("it is empty"));
        assert_eq!(check(b"#!/bin/sh\n"), no_library("it is no ELF file"));
        assert_eq!(check(b"\x7fELF\x02\x01"), no_library("it ends within its header"));
        let object = header(2, 1, [1, 0], [62, 0]);
        assert_eq!(check(&object), no_library("it is an object file that was not linked"));
        assert_eq!(check(&header(2, 1, [2, 0], [62, 0])), no_library("it is a program"));
        assert_eq!(
            check(&header(2, 1, [9, 0], [62, 0])),
            no_library("it is an ELF file of type 9")
        );
    }

    #[test]
    fn no_prefix_of_a_header_makes_it_panic() {
        let whole = header(2, 1, [3, 0], [62, 0]);
        for length in 0..whole.len() {
            assert!(check(&whole[..length]).is_err());
        }
    }
}
