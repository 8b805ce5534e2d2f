//! Checks whether a text at the position of a secret looks like a secret.

/// Accepts any text.
pub(super) fn accepts_any(_: &[u8], _: &[u8]) -> bool {
    true
}

/// Accepts digits mixed with letters, as generators produce them. Rejects words with hyphens.
pub(super) fn looks_random(secret: &[u8], _: &[u8]) -> bool {
    let digits = secret.iter().filter(|byte| byte.is_ascii_digit()).count();
    let letters = secret.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    digits >= 1 && letters >= 4 && distinct_byte_count(secret) >= 8 && !is_word_sequence(secret)
}

/// Accepts hexadecimal digits of a generator. Rejects `000…` and other runs of one digit.
pub(super) fn looks_varied(secret: &[u8], _: &[u8]) -> bool {
    distinct_byte_count(secret) >= 6
}

/// Accepts a JSON Web Token whose claims are those of a Kubernetes service account.
pub(super) fn is_kubernetes_token(secret: &[u8], _: &[u8]) -> bool {
    // "kubernetes" in base64, at each of the three alignments
    ["a3ViZXJuZXRlc", "t1YmVybmV0ZX", "rdWJlcm5ldGVz"]
        .iter()
        .any(|part| secret.windows(part.len()).any(|window| window == part.as_bytes()))
}

/// Accepts a PEM private key that is base64-encoded once more.
pub(super) fn is_private_key(secret: &[u8], _: &[u8]) -> bool {
    let opening = &secret[..secret.len().min(64) / 4 * 4];
    let decoded = data_encoding::BASE64.decode(opening).unwrap_or_default();
    decoded.windows(7).any(|window| window == b"PRIVATE")
}

/// Accepts base64 whose first decoded bytes are those of a token, at one of the three alignments.
pub(super) fn is_encoded_token(secret: &[u8], _: &[u8]) -> bool {
    ["", "AA", "AAA"].iter().any(|before| {
        let plain = |byte: &u8| match byte {
            b'-' => b'+',
            b'_' => b'/',
            other => *other,
        };
        let text: Vec<u8> =
            before.bytes().chain(secret.iter().take(36).map(plain)).take(36).collect();
        let whole = &text[..text.len() / 4 * 4];
        let decoded = data_encoding::BASE64_NOPAD.decode(whole).unwrap_or_default();
        let letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
        decoded.len() >= 18 && decoded[3..].iter().all(letter)
    })
}

/// Accepts the password of a URL. Rejects template variables.
pub(super) fn is_url_password(secret: &[u8], _: &[u8]) -> bool {
    !is_template(secret) && !secret.iter().all(|byte| matches!(byte, b'*' | b'x' | b'X' | b'.'))
}

/// Accepts a quoted value next to a name that suggests a secret.
pub(super) fn is_quoted_secret(secret: &[u8], _: &[u8]) -> bool {
    // a prefix is enough for the check, and bounds the work on hostile text
    let secret = &secret[..secret.len().min(256)];
    if is_template(secret)
        || is_path_or_url(secret)
        || is_word_sequence(secret)
        || is_uuid(secret)
        || is_typed_number(secret)
    {
        return false;
    }
    let digit = secret.iter().any(u8::is_ascii_digit);
    let letter = secret.iter().any(u8::is_ascii_alphabetic);
    let mixed =
        letter && (digit || char_class_count(secret) >= 3) && distinct_byte_count(secret) >= 6;
    mixed && shannon_entropy(secret) >= 2.6 && !is_mostly_words(secret)
}

/// Checks like [`is_quoted_secret`], at a position where any function argument could be.
pub(super) fn is_argument_secret(secret: &[u8], after: &[u8]) -> bool {
    looks_random(secret, after)
        && word_parts(secret).count() < 2
        && is_quoted_secret(secret, after)
        && shannon_entropy(secret) >= 3.3
        && class_change_ratio(secret) >= 0.25
}

/// Checks like [`is_quoted_secret`], without quotes: `NAME=value`.
pub(super) fn is_tight_assignment(secret: &[u8], after: &[u8]) -> bool {
    let named = secret.last().is_some_and(|byte| b"={([<!".contains(byte));
    let digit = secret.iter().any(u8::is_ascii_digit);
    !named
        && digit
        && is_quoted_secret(secret, after)
        && shannon_entropy(secret) >= 2.9
        && !is_code_expression(secret)
}

/// Checks like [`is_tight_assignment`], at a position where code could be as well: `name: Type,`, `name = CONSTANT;`.
pub(super) fn is_loose_assignment(secret: &[u8], after: &[u8]) -> bool {
    let identifier = secret.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
        && !secret[0].is_ascii_digit();
    let ended = after.first().is_some_and(|byte| b";,)".contains(byte));
    is_tight_assignment(secret, after)
        && !(identifier && ended && class_change_ratio(secret) < 0.36)
}

fn is_template(secret: &[u8]) -> bool {
    let has = |part: &[u8]| secret.windows(part.len()).any(|window| window == part);
    secret.first().is_some_and(|byte| b"$%{<[@&*#(".contains(byte))
        || [b"${".as_slice(), b"{{", b"}}", b"$(", b"***", b"...", b"%s", b"#{"]
            .iter()
            .any(|part| has(part))
        || [
            b"example".as_slice(),
            b"EXAMPLE",
            b"your_",
            b"your-",
            b"YOUR_",
            b"xxxx",
            b"XXXX",
            b"changeme",
        ]
        .iter()
        .any(|part| has(part))
}

/// Returns whether the text is a path or a URL.
fn is_path_or_url(secret: &[u8]) -> bool {
    let starts = |part: &[u8]| secret.starts_with(part);
    starts(b"/")
        || starts(b"./")
        || starts(b"../")
        || starts(b"~/")
        || starts(b"http")
        || secret.windows(3).any(|window| window == b"://")
}

/// Returns whether the text is an expression of code: `a::b`, `a->b`, `a.b*2`, `A_CONSTANT_2`.
fn is_code_expression(secret: &[u8]) -> bool {
    let has = |part: &[u8]| secret.windows(part.len()).any(|window| window == part);
    let name = |part: &[u8]| {
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        part.iter().all(word) && (part.len() <= 4 || !part[0].is_ascii_digit())
    };
    let operators = b".*+%|/-";
    let expression = secret.iter().any(|byte| b".*".contains(byte))
        && secret.split(|byte| operators.contains(byte)).all(name);
    let shouted = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    let constant = secret.contains(&b'_') && secret.iter().all(shouted);
    expression
        || constant
        || [b"::".as_slice(), b"->", b"=>", b"||", b"&&", b"++"].iter().any(|part| has(part))
}

fn is_uuid(secret: &[u8]) -> bool {
    secret.len() == 36
        && secret.iter().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// Returns whether the text is words with separators, each with an optional number after it: `oauth2-token_v3`.
fn is_word_sequence(secret: &[u8]) -> bool {
    secret.split(|byte| b"._/:-@+ ,".contains(byte)).filter(|part| !part.is_empty()).all(|part| {
        let letters = part.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
        let digits = part[letters..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        letters + digits == part.len() && digits <= 4 && is_wordlike(&part[..letters])
    })
}

/// Returns whether the letters look like words: `word`, `WORD`, `SomeWords`, with the vowels of words.
fn is_wordlike(letters: &[u8]) -> bool {
    let humps = letters
        .windows(2)
        .filter(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
    let vowels = letters.iter().filter(|byte| b"aeiouyAEIOUY".contains(byte)).count();
    humps.count() * 4 <= letters.len()
        && (letters.len() < 8 || vowels * 6 >= letters.len())
        && (letters.len() < LONG_WORD_LENGTH || !is_mixed_without_words(letters))
}

/// Letters of one part from which on a name in mixed case must also be spelled as one. Generators produce parts of this length without a
/// digit inside about once in 4,000 keys.
const LONG_WORD_LENGTH: usize = 20;

/// Returns whether the letters are of both cases and spelled as no name is: a third or more upper case, or six consonants in a row.
fn is_mixed_without_words(letters: &[u8]) -> bool {
    let upper_case = letters.iter().filter(|byte| byte.is_ascii_uppercase()).count();
    let is_mixed = upper_case > 0 && upper_case < letters.len();
    let has_run = letters
        .split(|byte| b"aeiouyAEIOUY".contains(byte))
        .any(|consonants| consonants.len() >= 6);
    is_mixed && (upper_case * 3 >= letters.len() || has_run)
}

/// Returns whether at least half of the text is words between separators: `made-up-secret-12345`.
fn is_mostly_words(secret: &[u8]) -> bool {
    word_parts(secret).map(<[u8]>::len).sum::<usize>() * 2 >= secret.len()
}

fn word_parts(secret: &[u8]) -> impl Iterator<Item = &[u8]> {
    let word = |part: &&[u8]| {
        part.len() >= 4 && part.iter().all(u8::is_ascii_alphabetic) && is_wordlike(part)
    };
    secret.split(|byte| b"._/:-".contains(byte)).filter(word)
}

/// Returns whether the text is a number with its type: `251658240i32`.
fn is_typed_number(secret: &[u8]) -> bool {
    let digits = secret.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'_').count();
    let suffix = &secret[digits..];
    digits > 0 && suffix.len() <= 5 && suffix.first().is_none_or(|byte| b"iufUL".contains(byte))
}

/// Returns how often the characters change between lower case, upper case and digit, not counting `Ab`. It is low for names.
fn class_change_ratio(secret: &[u8]) -> f64 {
    let class = |byte: u8| match byte {
        b'a'..=b'z' => 0,
        b'A'..=b'Z' => 1,
        b'0'..=b'9' => 2,
        _ => 3,
    };
    let change = |pair: &&[u8]| {
        let (first, second) = (class(pair[0]), class(pair[1]));
        first != second && (first, second) != (1, 0)
    };
    let count = secret.windows(2).filter(change).count();
    ratio_of(count, secret.len())
}

fn ratio_of(part: usize, whole: usize) -> f64 {
    let number = |count| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    number(part) / number(whole).max(1.0)
}

fn distinct_byte_count(secret: &[u8]) -> usize {
    let mut seen = [false; 256];
    for byte in secret {
        seen[usize::from(*byte)] = true;
    }
    seen.iter().filter(|seen| **seen).count()
}

/// Returns how many of these classes occur: lower case, upper case, digits, others.
fn char_class_count(secret: &[u8]) -> usize {
    let any = |is: fn(&u8) -> bool| usize::from(secret.iter().any(is));
    any(u8::is_ascii_lowercase)
        + any(u8::is_ascii_uppercase)
        + any(u8::is_ascii_digit)
        + any(|byte| !byte.is_ascii_alphanumeric())
}

/// Returns the Shannon entropy in bits per byte.
fn shannon_entropy(secret: &[u8]) -> f64 {
    let mut counts = [0_usize; 256];
    for byte in secret {
        counts[usize::from(*byte)] += 1;
    }
    counts
        .into_iter()
        .filter(|count| *count > 0)
        .map(|count| ratio_of(count, secret.len()))
        .map(|share| -share * share.log2())
        .sum()
}
