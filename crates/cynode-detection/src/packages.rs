//! Names of Debian packages: which package has a program, a header, a library, a module of `CMake` or of pkg-config.

/// Major version of Debian 12's Node.
pub(crate) const NODE_MAJOR: u32 = 18;

/// Minor version of Debian 12's Python 3.
pub(crate) const PYTHON_MINOR: u32 = 11;

/// Minor version of Rust 1 in Debian 12's `rustc-web`.
pub(crate) const RUST_MINOR: u32 = 96;

/// Minor version of Debian 12's Go 1.
pub(crate) const GO_MINOR: u32 = 19;

/// Programs and the packages that have them.
const PROGRAMS: [(&str, &str); 62] = [
    ("aclocal", "automake"),
    ("autoconf", "autoconf"),
    ("autoheader", "autoconf"),
    ("autom4te", "autoconf"),
    ("automake", "automake"),
    ("autopoint", "autopoint"),
    ("autoreconf", "autoconf"),
    ("bison", "bison"),
    ("bundle", "bundler"),
    ("c++", "build-essential"),
    ("cargo", "cargo-web"),
    ("cc", "build-essential"),
    ("ccache", "ccache"),
    ("clang", "clang"),
    ("clang-format", "clang-format"),
    ("cmake", "cmake"),
    ("ctest", "cmake"),
    ("curl", "curl"),
    ("file", "file"),
    ("flex", "flex"),
    ("g++", "build-essential"),
    ("gcc", "build-essential"),
    ("gettext", "gettext"),
    ("git", "git"),
    ("go", "golang"),
    ("gperf", "gperf"),
    ("gradle", "gradle"),
    ("java", "default-jdk-headless"),
    ("javac", "default-jdk-headless"),
    ("jq", "jq"),
    ("ld", "binutils"),
    ("lex", "flex"),
    ("libtool", "libtool"),
    ("libtoolize", "libtool"),
    ("m4", "m4"),
    ("make", "make"),
    ("makeinfo", "texinfo"),
    ("meson", "meson"),
    ("msgfmt", "gettext"),
    ("mvn", "maven"),
    ("nasm", "nasm"),
    ("ninja", "ninja-build"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("npx", "npm"),
    ("patch", "patch"),
    ("perl", "perl"),
    ("pip", "python3-pip"),
    ("pip3", "python3-pip"),
    ("pkg-config", "pkg-config"),
    ("protoc", "protobuf-compiler"),
    ("psql", "postgresql-client"),
    ("python3", "python3"),
    ("redis-cli", "redis-tools"),
    ("redis-server", "redis-server"),
    ("rsync", "rsync"),
    ("ruby", "ruby"),
    ("rustc", "rustc-web"),
    ("sqlite3", "sqlite3"),
    ("unzip", "unzip"),
    ("xsltproc", "xsltproc"),
    ("yacc", "bison"),
];

/// Headers, or the directories that they stand in, and the packages that have them.
const HEADERS: [(&str, &str); 36] = [
    ("Python.h", "python3-dev"),
    ("alsa/asoundlib.h", "libasound2-dev"),
    ("archive.h", "libarchive-dev"),
    ("boost/", "libboost-dev"),
    ("bzlib.h", "libbz2-dev"),
    ("check.h", "check"),
    ("cmocka.h", "libcmocka-dev"),
    ("curl/", "libcurl4-openssl-dev"),
    ("event2/", "libevent-dev"),
    ("expat.h", "libexpat1-dev"),
    ("ffi.h", "libffi-dev"),
    ("freetype/", "libfreetype-dev"),
    ("glib.h", "libglib2.0-dev"),
    ("gmp.h", "libgmp-dev"),
    ("gmock/", "libgmock-dev"),
    ("gtest/", "libgtest-dev"),
    ("jansson.h", "libjansson-dev"),
    ("jpeglib.h", "libjpeg-dev"),
    ("libpq-fe.h", "libpq-dev"),
    ("libudev.h", "libudev-dev"),
    ("libxml/", "libxml2-dev"),
    ("libxslt/", "libxslt1-dev"),
    ("lzma.h", "liblzma-dev"),
    ("mysql.h", "default-libmysqlclient-dev"),
    ("ncurses.h", "libncurses-dev"),
    ("curses.h", "libncurses-dev"),
    ("nlohmann/", "nlohmann-json3-dev"),
    ("openssl/", "libssl-dev"),
    ("pcre2.h", "libpcre2-dev"),
    ("png.h", "libpng-dev"),
    ("readline/", "libreadline-dev"),
    ("sqlite3.h", "libsqlite3-dev"),
    ("uuid/uuid.h", "uuid-dev"),
    ("yaml.h", "libyaml-dev"),
    ("zlib.h", "zlib1g-dev"),
    ("zstd.h", "libzstd-dev"),
];

/// Libraries as the linker names them, and the packages that have them.
const LIBRARIES: [(&str, &str); 26] = [
    ("archive", "libarchive-dev"),
    ("asound", "libasound2-dev"),
    ("bz2", "libbz2-dev"),
    ("check", "check"),
    ("crypto", "libssl-dev"),
    ("curl", "libcurl4-openssl-dev"),
    ("curses", "libncurses-dev"),
    ("expat", "libexpat1-dev"),
    ("ffi", "libffi-dev"),
    ("fl", "libfl-dev"),
    ("gmp", "libgmp-dev"),
    ("gtest", "libgtest-dev"),
    ("jansson", "libjansson-dev"),
    ("jpeg", "libjpeg-dev"),
    ("lzma", "liblzma-dev"),
    ("ncurses", "libncurses-dev"),
    ("png", "libpng-dev"),
    ("pq", "libpq-dev"),
    ("readline", "libreadline-dev"),
    ("sqlite3", "libsqlite3-dev"),
    ("ssl", "libssl-dev"),
    ("udev", "libudev-dev"),
    ("uuid", "uuid-dev"),
    ("xml2", "libxml2-dev"),
    ("z", "zlib1g-dev"),
    ("zstd", "libzstd-dev"),
];

/// Modules of `CMake`'s `find_package` and of pkg-config, in small letters, and the packages that have them.
const MODULES: [(&str, &str); 40] = [
    ("alsa", "libasound2-dev"),
    ("benchmark", "libbenchmark-dev"),
    ("bison", "bison"),
    ("boost", "libboost-all-dev"),
    ("bzip2", "libbz2-dev"),
    ("catch2", "catch2"),
    ("check", "check"),
    ("cmocka", "libcmocka-dev"),
    ("curl", "libcurl4-openssl-dev"),
    ("curses", "libncurses-dev"),
    ("doctest", "doctest-dev"),
    ("eigen3", "libeigen3-dev"),
    ("expat", "libexpat1-dev"),
    ("flex", "flex"),
    ("fmt", "libfmt-dev"),
    ("freetype", "libfreetype-dev"),
    ("glib-2.0", "libglib2.0-dev"),
    ("gmp", "libgmp-dev"),
    ("gtest", "libgtest-dev"),
    ("jansson", "libjansson-dev"),
    ("jpeg", "libjpeg-dev"),
    ("libcurl", "libcurl4-openssl-dev"),
    ("libffi", "libffi-dev"),
    ("libpng", "libpng-dev"),
    ("libpq", "libpq-dev"),
    ("libssl", "libssl-dev"),
    ("libudev", "libudev-dev"),
    ("libxml2", "libxml2-dev"),
    ("libxml-2.0", "libxml2-dev"),
    ("ncurses", "libncurses-dev"),
    ("nlohmann_json", "nlohmann-json3-dev"),
    ("openssl", "libssl-dev"),
    ("pkgconfig", "pkg-config"),
    ("png", "libpng-dev"),
    ("postgresql", "libpq-dev"),
    ("protobuf", "protobuf-compiler"),
    ("spdlog", "libspdlog-dev"),
    ("sqlite3", "libsqlite3-dev"),
    ("zlib", "zlib1g-dev"),
    ("zstd", "libzstd-dev"),
];

/// Further packages that CI files often install and whose names are the same in Debian.
const OTHERS: [&str; 14] = [
    "build-essential",
    "gettext",
    "libclang-dev",
    "libdbus-1-dev",
    "libgtk-3-dev",
    "libseccomp-dev",
    "libsodium-dev",
    "libsystemd-dev",
    "locales",
    "musl-tools",
    "pkg-config",
    "valgrind",
    "zip",
    "xvfb",
];

fn look_up(table: &[(&'static str, &'static str)], key: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == key).map(|(_, package)| *package)
}

/// Returns the package that has a program.
pub(crate) fn package_of_program(program: &str) -> Option<&'static str> {
    look_up(&PROGRAMS, program.rsplit('/').next().unwrap_or(program))
}

/// Returns the package that has a header, by the path in its `#include`.
pub(crate) fn package_of_header(header: &str) -> Option<&'static str> {
    let matches =
        |known: &str| header == known || (known.ends_with('/') && header.starts_with(known));
    HEADERS.iter().find(|(known, _)| matches(known)).map(|(_, package)| *package)
}

/// Returns the package that has a library, by the name behind the linker's `-l`.
pub(crate) fn package_of_library(library: &str) -> Option<&'static str> {
    look_up(&LIBRARIES, library)
}

/// Returns the package that has a module of `CMake` or of pkg-config.
pub(crate) fn package_of_module(module: &str) -> Option<&'static str> {
    look_up(&MODULES, &module.to_lowercase())
}

/// Returns the Debian package that a CI file means, if its name is known to be right.
pub(crate) fn known_package(name: &str) -> Option<&'static str> {
    let tables = [&PROGRAMS[..], &HEADERS[..], &LIBRARIES[..], &MODULES[..]];
    let packages = tables.into_iter().flatten().map(|(_, package)| *package);
    packages.chain(OTHERS).find(|package| *package == name)
}
