//! Releases of our programs, and which of them work together: those that are at most one release apart.

use std::{fmt, str::FromStr};

/// Name of the HTTP header with which a program of ours says its release, in requests and in answers.
pub const RELEASE_HEADER: &str = "cynode-release";

/// Release of a program: two programs with the same major number whose minor numbers differ by at most one work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    major: u32,
    minor: u32,
    patch: u32,
}

/// How another program's release stands to ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseSkew {
    /// The two programs work together.
    Compatible,
    /// The other program is more than one release older.
    TooOld,
    /// The other program is more than one release newer.
    TooNew,
}

/// Error: the text is not the number of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a release is MAJOR.MINOR.PATCH")]
pub struct UnknownRelease;

impl Release {
    /// Returns the release of this program, as it stands in the program's file.
    pub fn current() -> Self {
        // It is read when the program runs: `prove/resilience/skew` makes copies of the programs that say another release.
        let text: &[u8] = std::hint::black_box(&PROGRAM_RELEASE);
        let text = text.strip_prefix(RELEASE_MARK).unwrap_or(text);
        let mut numbers = text.split(|byte| *byte == b'.').map(parse_decimal);
        let mut next = || numbers.next().unwrap_or_default();
        Self { major: next(), minor: next(), patch: next() }
    }

    /// Creates a release from its three numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Compares the release of another program with this one.
    pub const fn skew_of(self, other: Self) -> ReleaseSkew {
        if self.major == other.major && self.minor.abs_diff(other.minor) <= 1 {
            return ReleaseSkew::Compatible;
        }
        let is_older =
            other.major < self.major || (other.major == self.major && other.minor < self.minor);
        if is_older { ReleaseSkew::TooOld } else { ReleaseSkew::TooNew }
    }
}

/// What stands before the release in a program's file, so that it is found there.
const RELEASE_MARK: &[u8] = b"cynode program release ";

/// The release in a program's file.
#[used]
static PROGRAM_RELEASE: [u8; RELEASE_TEXT.len()] = to_array(RELEASE_TEXT.as_bytes());

const RELEASE_TEXT: &str = concat!("cynode program release ", env!("CARGO_PKG_VERSION"), "\n");

const fn to_array<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(text);
    array
}

/// Parses the digits at the beginning of a number of Cargo; other characters end it.
fn parse_decimal(text: &[u8]) -> u32 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Release {
    type Err = UnknownRelease;

    /// Parses `MAJOR.MINOR.PATCH`. What follows a hyphen or a plus sign, a pre-release or a build, is not compared.
    fn from_str(text: &str) -> Result<Self, UnknownRelease> {
        let numbers = text.split(['-', '+']).next().unwrap_or_default();
        let mut numbers = numbers.split('.').map(|number| {
            let is_decimal = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            if is_decimal {
                number.parse::<u32>().map_err(|_| UnknownRelease)
            } else {
                Err(UnknownRelease)
            }
        });
        let mut next = || numbers.next().ok_or(UnknownRelease)?;
        let release = Self { major: next()?, minor: next()?, patch: next()? };
        if numbers.next().is_some() { Err(UnknownRelease) } else { Ok(release) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_one_release_apart_work_together_and_others_are_told_which_is_behind() {
        let skew = |other: &str| Release::new(1, 4, 2).skew_of(other.parse().unwrap());
        assert_eq!(
            ["1.3.9", "1.4.0", "1.5.0", "1.2.9", "0.9.0", "1.6.0", "2.0.0"].map(skew),
            [
                ReleaseSkew::Compatible,
                ReleaseSkew::Compatible,
                ReleaseSkew::Compatible,
                ReleaseSkew::TooOld,
                ReleaseSkew::TooOld,
                ReleaseSkew::TooNew,
                ReleaseSkew::TooNew,
            ]
        );
    }

    #[test]
    fn a_release_is_three_numbers_and_a_pre_release_counts_as_its_release() {
        let parsed = |text: &str| text.parse::<Release>();
        assert_eq!(parsed("0.2.0-rc.1"), Ok(Release::new(0, 2, 0)));
        for text in ["", "1", "1.2", "1.2.3.4", "1.x.3", "1..3", "+1.2.3", "99999999999.0.0"] {
            assert_eq!(parsed(text), Err(UnknownRelease), "{text}");
        }
    }

    #[test]
    fn the_release_of_this_program_is_that_of_its_package() {
        assert_eq!(Release::current().to_string(), env!("CARGO_PKG_VERSION"));
    }
}
