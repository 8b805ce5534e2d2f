//! Parts of a backup: each is compressed, encrypted and has its digest in the manifest. `age -d | gunzip` reads one without us.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use age::{
    Decryptor,
    stream::{StreamReader, StreamWriter},
    x25519,
};
use anyhow::{Context, anyhow, ensure};
use data_encoding::HEXLOWER;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use ring::digest::{Context as DigestContext, SHA256};
use serde::{Deserialize, Serialize};

use super::encryption::encrypt_stream;

/// A part of a backup, as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartRecord {
    /// Name of the file.
    pub(super) name: String,
    /// Size of the file.
    pub(super) bytes: u64,
    /// SHA-256 of the encrypted file.
    pub(super) sha256: String,
}

/// Computes the SHA-256 of what passes through.
pub(super) struct DigestWriter<W> {
    inner: W,
    digest: DigestContext,
    bytes: u64,
}

impl<W: Write> DigestWriter<W> {
    pub(super) fn new(inner: W) -> Self {
        Self { inner, digest: DigestContext::new(&SHA256), bytes: 0 }
    }

    /// Returns what it wrote to, the number of bytes and their digest.
    pub(super) fn finish(self) -> (W, u64, String) {
        (self.inner, self.bytes, HEXLOWER.encode(self.digest.finish().as_ref()))
    }
}

impl<W: Write> Write for DigestWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.digest.update(bytes.get(..count).unwrap_or_default());
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Reads exactly as many bytes as a file had, and computes their SHA-256. A file that became shorter is an error.
pub(super) struct DigestReader<R> {
    inner: R,
    digest: DigestContext,
    remaining: u64,
}

impl<R: Read> DigestReader<R> {
    pub(super) fn new(inner: R, bytes: u64) -> Self {
        Self { inner, digest: DigestContext::new(&SHA256), remaining: bytes }
    }

    pub(super) fn finish(self) -> String {
        HEXLOWER.encode(self.digest.finish().as_ref())
    }
}

impl<R: Read> Read for DigestReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.remaining == 0 || into.is_empty() {
            return Ok(0);
        }
        let most = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(into.len());
        let Some(into) = into.get_mut(..most) else { return Ok(0) };
        let count = self.inner.read(into)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.digest.update(into.get(..count).unwrap_or_default());
        self.remaining = self.remaining.saturating_sub(count as u64);
        Ok(count)
    }
}

/// Returns the SHA-256 of bytes.
pub(super) fn digest_bytes(bytes: &[u8]) -> String {
    HEXLOWER.encode(ring::digest::digest(&SHA256, bytes).as_ref())
}

/// A part that is being written.
pub(super) struct PartWriter {
    name: String,
    stream: GzEncoder<StreamWriter<DigestWriter<BufWriter<File>>>>,
}

impl PartWriter {
    /// Creates a part. One of an interrupted attempt is replaced.
    pub(super) fn create(
        directory: &Path,
        name: &str,
        key: &x25519::Recipient,
    ) -> anyhow::Result<Self> {
        let name = format!("{name}.gz.age");
        let path = directory.join(&name);
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let encrypted = encrypt_stream(key, DigestWriter::new(BufWriter::new(file)))?;
        Ok(Self { name, stream: GzEncoder::new(encrypted, Compression::fast()) })
    }

    /// Completes the part: it is on the disk when this returns.
    pub(super) fn finish(self) -> anyhow::Result<PartRecord> {
        let Self { name, stream } = self;
        let finished = || -> io::Result<PartRecord> {
            let (buffer, bytes, sha256) = stream.finish()?.finish()?.finish();
            let file = buffer.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            Ok(PartRecord { name: name.clone(), bytes, sha256 })
        };
        finished().with_context(|| format!("cannot complete {name}"))
    }
}

impl Write for PartWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Content of a part that is being read.
pub(super) type PartReader = GzDecoder<StreamReader<BufReader<File>>>;

/// Verifies the digest of a part, then opens it.
pub(super) fn open_part(
    backup: &Path,
    part: &PartRecord,
    key: &x25519::Identity,
) -> anyhow::Result<PartReader> {
    let path = part_path(backup, part)?;
    let open = || File::open(&path).with_context(|| format!("cannot read {}", path.display()));
    let mut digest = DigestWriter::new(io::sink());
    io::copy(&mut open()?, &mut digest)?;
    let (_, bytes, sha256) = digest.finish();
    ensure!(
        bytes == part.bytes && sha256 == part.sha256,
        "{} is not what the manifest names: it was changed, or cut off",
        path.display()
    );
    let decryptor = Decryptor::new_buffered(BufReader::new(open()?));
    let opened = decryptor
        .and_then(|decryptor| decryptor.decrypt(std::iter::once(key as &dyn age::Identity)));
    let opened = opened.map_err(|error| anyhow!("{} cannot be opened: {error}", path.display()))?;
    Ok(GzDecoder::new(opened))
}

fn part_path(backup: &Path, part: &PartRecord) -> anyhow::Result<PathBuf> {
    let is_name = !part.name.is_empty()
        && !part.name.starts_with('.')
        && part.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    ensure!(is_name, "the manifest names a part that is no file name");
    Ok(backup.join(&part.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_reads_back_and_a_changed_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let key = x25519::Identity::generate();
        let mut writer =
            PartWriter::create(dir.path(), "files-0001.tar", &key.to_public()).unwrap();
        writer.write_all(&b"some text ".repeat(10_000)).unwrap();
        let part = writer.finish().unwrap();
        assert_eq!(part.name, "files-0001.tar.gz.age");
        let mut text = String::new();
        open_part(dir.path(), &part, &key).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "some text ".repeat(10_000));

        let path = dir.path().join(&part.name);
        let stored = std::fs::read(&path).unwrap();
        assert!(!stored.windows(9).any(|window| window == b"some text"), "it is in the clear");
        let mut changed = stored.clone();
        *changed.last_mut().unwrap() ^= 1;
        for wrong in [changed, stored[..stored.len() - 1].to_vec()] {
            std::fs::write(&path, wrong).unwrap();
            let refused = open_part(dir.path(), &part, &key).err().unwrap().to_string();
            assert!(refused.contains("is not what the manifest names"), "{refused}");
        }
    }

    #[test]
    fn a_part_outside_of_the_backup_is_refused() {
        let key = x25519::Identity::generate();
        for name in ["../manifest.json", "/etc/passwd", ".hidden", ""] {
            let part = PartRecord { name: name.to_owned(), bytes: 0, sha256: String::new() };
            assert!(open_part(Path::new("/nonexistent"), &part, &key).is_err(), "{name}");
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let mut reader = DigestReader::new(&b"abc"[..], 4);
        assert!(io::copy(&mut reader, &mut io::sink()).is_err());
        let mut reader = DigestReader::new(&b"abcd"[..], 3);
        assert_eq!(io::copy(&mut reader, &mut io::sink()).unwrap(), 3);
        assert_eq!(reader.finish(), digest_bytes(b"abc"));
    }
}
