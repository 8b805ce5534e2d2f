//! Table of rules: the format of each kind of secret, as its issuer documents it.
//!
//! A row names *anchors*, the characters that the scanner searches for. Either an anchor is the start of the secret, or it precedes the
//! secret and a pattern describes the text between them. Patterns have no upper bounds of their own: `limit` bounds them all, so that a
//! stream knows how much to hold back.

use super::check::{self, accepts_any};

/// A check in code, after the patterns matched. Its arguments are the secret and the text after it.
type SecretCheck = fn(&[u8], &[u8]) -> bool;

/// One format of one kind of secret.
pub(super) struct RuleRow {
    /// Name of the kind in placeholders.
    pub(super) kind: &'static str,
    /// Priority for naming a span that several rules found: the highest rank names it.
    pub(super) rank: u8,
    /// Condition on the text before the anchor.
    pub(super) edge: AnchorEdge,
    /// Number of letters and digits before the anchor that belong to the secret.
    pub(super) back: usize,
    pub(super) anchors: RuleAnchors,
    pub(super) head: AnchorPosition,
    /// Pattern of the secret, or of the rest of it.
    pub(super) secret: &'static str,
    /// Number of bytes at the end of `secret` that only mark its end.
    pub(super) trim: usize,
    /// Maximum length in bytes.
    pub(super) limit: usize,
    pub(super) check: SecretCheck,
}

/// Condition on the text before an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnchorEdge {
    /// Any text.
    Any,
    /// No character that would put the anchor in the middle of a word.
    Word,
    /// As `Word`, and none of these characters either, except at the start of a line. They join the parts of a run of letters, and without
    /// this condition each part of a long run would be tried.
    Apart(&'static [u8]),
    /// A digit.
    Digit,
}

/// Position of the anchor relative to the secret.
#[derive(Clone, Copy)]
pub(super) enum AnchorPosition {
    /// The anchor is the start of the secret.
    InSecret,
    /// The anchor precedes the secret, with this pattern between them.
    Before(&'static str),
}

/// Texts to search for.
#[derive(Clone, Copy)]
pub(super) enum RuleAnchors {
    List(&'static [&'static str]),
    /// Words that suggest a secret, in three spellings.
    Words,
}

/// Words that suggest a secret.
const SECRET_NAME_WORDS: &[&str] = &[
    "pass",
    "Pass",
    "PASS",
    "pwd",
    "Pwd",
    "PWD",
    "secret",
    "Secret",
    "SECRET",
    "token",
    "Token",
    "TOKEN",
    "api_key",
    "API_KEY",
    "apikey",
    "APIKEY",
    "ApiKey",
    "apiKey",
    "Apikey",
    "api-key",
    "API-KEY",
    "Api-Key",
    "API-Key",
    "access_key",
    "ACCESS_KEY",
    "accessKey",
    "AccessKey",
    "private_key",
    "PRIVATE_KEY",
    "privateKey",
    "PrivateKey",
    "signing_key",
    "SIGNING_KEY",
    "encryption_key",
    "ENCRYPTION_KEY",
    "auth_key",
    "AUTH_KEY",
    "credential",
    "Credential",
    "CREDENTIAL",
];

impl RuleAnchors {
    pub(super) const fn as_slice(self) -> &'static [&'static str] {
        match self {
            Self::List(list) => list,
            Self::Words => SECRET_NAME_WORDS,
        }
    }

    /// Returns the anchors in the syntax of patterns.
    pub(super) fn to_patterns(self) -> Vec<String> {
        self.as_slice().iter().map(|anchor| escape_pattern(anchor)).collect()
    }
}

fn escape_pattern(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if !c.is_ascii_alphanumeric() && c != '_' && c != ' ' && c != '-' && c != '/' && c != ':' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Creates a rule for a secret that starts with a known prefix.
const fn prefix_rule(
    kind: &'static str,
    anchors: &'static [&'static str],
    secret: &'static str,
) -> RuleRow {
    RuleRow {
        kind,
        rank: 2,
        edge: AnchorEdge::Any,
        back: 0,
        anchors: RuleAnchors::List(anchors),
        head: AnchorPosition::InSecret,
        secret,
        trim: 0,
        limit: 512,
        check: accepts_any,
    }
}

/// Creates a rule for a secret after known words and a pattern.
const fn lead_rule(
    kind: &'static str,
    anchors: &'static [&'static str],
    between: &'static str,
    secret: &'static str,
) -> RuleRow {
    RuleRow { head: AnchorPosition::Before(between), ..prefix_rule(kind, anchors, secret) }
}

/// Creates a rule for a secret that is assigned to a name with one of the words.
const fn assignment_rule(
    kind: &'static str,
    anchors: &'static [&'static str],
    secret: &'static str,
) -> RuleRow {
    lead_rule(kind, anchors, ASSIGN_PATTERN, secret)
}

/// Creates a guess: a value that is assigned to a name that suggests a secret.
const fn guess_rule(between: &'static str, secret: &'static str, check: SecretCheck) -> RuleRow {
    RuleRow {
        kind: GUESS_KIND,
        rank: 1,
        anchors: RuleAnchors::Words,
        check,
        ..lead_rule("", &[], between, secret)
    }
}

/// Kind name of guesses.
pub(super) const GUESS_KIND: &str = "secret";

impl RuleRow {
    const fn with_edge(self, edge: AnchorEdge) -> Self {
        Self { edge, ..self }
    }

    const fn with_back(self, back: usize) -> Self {
        Self { back, ..self }
    }

    const fn with_trim(self, trim: usize) -> Self {
        Self { trim, ..self }
    }

    const fn with_limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    const fn with_rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    const fn with_check(self, check: SecretCheck) -> Self {
        Self { check, ..self }
    }
}

/// Rest of a name, and an assignment: `_2" : "`, also with quotes escaped several times.
const ASSIGN_PATTERN: &str = r#"[A-Za-z0-9_.-]{0,32}\\{0,8}["'`]?\]?[ \t]{0,4}(?:=>|:=|\?=|[:=,(])(?:[ \t]|\\{0,8}[nt]|\r?\n){0,4}\\{0,8}["'`]?"#;

/// As [`ASSIGN_PATTERN`], and a quote must follow.
const ASSIGN_QUOTED_PATTERN: &str = r#"[A-Za-z0-9_-]{0,24}\\{0,8}["'`]?\]?[ \t]{0,8}(?:=>|:=|\?=|==|!=|[:=])[ \t\n]{0,8}[bru]?#?\\{0,8}["'`]"#;

/// A quoted argument: `set_token("`, `"TOKEN", "`.
const ARGUMENT_PATTERN: &str =
    r#"[A-Za-z0-9_-]{0,24}\\{0,8}["'`]?[ \t]{0,2}[(,][ \t\n]{0,8}[bru]?#?\\{0,8}["'`]"#;

/// Assignment in configuration files: `NAME=`.
const ASSIGN_TIGHT_PATTERN: &str = r"[A-Za-z0-9_-]{0,24}(?::=|\?=|=)";

/// Assignment in configuration files and code: `name: `, `name = `.
const ASSIGN_LOOSE_PATTERN: &str =
    r"[A-Za-z0-9_-]{0,24}(?:[ \t]{0,4}(?::=|\?=|[:=])[ \t]{1,4}|[ \t]{1,4}=|:| (?:is|was):? )";

/// A value without quotes, and characters that reveal code: an assignment, a call.
const BARE_VALUE_PATTERN: &str =
    r#"[^\x00-\x20\x7f"'`\\<>,;&(){}\[\]:=][^\x00-\x20\x7f"'`\\<>,;&(){}\[\]]{7,}(?: ?[={(\[<!])?"#;

/// Body of a private key: base64 with line ends as text, as JSON escapes, and with the prefixes of diffs, quotations and line numbers.
const PEM_BODY_PATTERN: &str = concat!(
    r#"(?:[\s\\nrt"'+,>|0-9-]{0,120}"#,
    r"(?:(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset|MessageID)[ :][ -\[\]-~]{0,120}[\s\\nrt>|+-]{1,96}){0,5}",
    r"[A-Za-z0-9+/]{16}[A-Za-z0-9+/\\]*={0,2})",
    r#"(?:[\s\\"'+,>|-]{1,96}(?:[0-9]{1,5}[\s|>:]{1,8})?[A-Za-z0-9+/\\]{8,}={0,2})*"#,
    // the last line may be short; a checksum or the end follows it
    r#"(?:(?:[\s\\"'+,>|0-9-]{1,96}[A-Za-z0-9+/\\]{1,80}={0,2})?"#,
    r#"(?:[\s\\"'+,>|0-9nr-]{1,96}=[A-Za-z0-9+/]{4})?"#,
    r#"[\s\\"'+,>|0-9nr-]{0,96}-----END [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----"#,
    r#"|[\s\\"'+,>|0-9-]{1,96}[A-Za-z0-9+/\\]{4,80}={0,2})?"#,
);

/// The rules, in any order.
pub(super) const RULE_TABLE: &[RuleRow] = &[
    // CyNode
    prefix_rule(
        "cynode_token",
        &[
            "cyn_ses_",
            "cyn_key_",
            "cyn_boot_",
            "cyn_run_",
            "cyn_wrk_",
            "cyn_pm_",
            "cyn_pa_",
            "cyn_sbx_",
            "cyn_pma_",
            "cyn_join_",
            "cyn_nod_",
            "cyn_scim_",
            "cyn_brk_",
            "cyn_dev_",
        ],
        "[A-Za-z0-9_-]{16,}",
    )
    .with_rank(3),
    lead_rule("restate_key", &["key_"], "", r"[A-Za-z0-9]{16,}\.[A-Za-z0-9_-]{16,}")
        .with_edge(AnchorEdge::Word),
    // cloud providers
    prefix_rule("aws_access_key_id", &["AKIA"], "[A-Z0-9]{16}").with_check(check::looks_varied),
    prefix_rule("aws_access_key_id", &["ASIA", "ABIA", "ACCA"], "[A-Z0-9]{16}")
        .with_edge(AnchorEdge::Apart(b"+/"))
        .with_check(check::looks_varied),
    assignment_rule(
        "aws_secret_key",
        &[
            "aws_secret",
            "AWS_SECRET",
            "secret_access_key",
            "SECRET_ACCESS_KEY",
            "secretAccessKey",
            "SecretAccessKey",
        ],
        r"[A-Za-z0-9/+]{40,}={0,2}",
    ),
    assignment_rule(
        "aws_session_token",
        &[
            "aws_session_token",
            "AWS_SESSION_TOKEN",
            "sessionToken",
            "SessionToken",
            "x-amz-security-token",
            "X-Amz-Security-Token",
        ],
        r"[A-Za-z0-9/+%]{64,}={0,2}",
    )
    .with_limit(4096),
    prefix_rule("aws_bedrock_key", &["ABSK", "bedrock-api-key-"], "[A-Za-z0-9+/=_-]{64,}")
        .with_limit(4096)
        .with_edge(AnchorEdge::Word),
    prefix_rule("gcp_api_key", &["AIza"], "[A-Za-z0-9_-]{35}").with_edge(AnchorEdge::Apart(b"+/")),
    prefix_rule("google_oauth_secret", &["GOCSPX-"], "[A-Za-z0-9_-]{20,}"),
    prefix_rule("google_oauth_token", &["ya29."], "[A-Za-z0-9_.-]{20,}")
        .with_limit(2048)
        .with_edge(AnchorEdge::Word),
    prefix_rule("google_oauth_token", &["1//0"], "[A-Za-z0-9_-]{30,}")
        .with_edge(AnchorEdge::Word)
        .with_check(check::looks_random),
    assignment_rule(
        "azure_storage_key",
        &[
            "AccountKey",
            "accountKey",
            "ACCOUNT_KEY",
            "account_key",
            "STORAGE_KEY",
            "storage_key",
            "SharedAccessKey",
        ],
        r"[A-Za-z0-9+/]{42,}={0,2}",
    ),
    lead_rule("azure_sas", &["sig="], "", r"[A-Za-z0-9+/%]{42,}={0,2}").with_edge(AnchorEdge::Word),
    prefix_rule("azure_client_secret", &["Q~"], "[A-Za-z0-9_~.-]{31,}")
        .with_edge(AnchorEdge::Digit)
        .with_back(4),
    prefix_rule("digitalocean_token", &["dop_v1_", "doo_v1_", "dor_v1_"], "[a-f0-9]{32,}"),
    prefix_rule("heroku_key", &["HRKU-"], "[A-Za-z0-9_-]{36,}"),
    assignment_rule(
        "heroku_key",
        &["heroku", "HEROKU", "Heroku"],
        "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    ),
    assignment_rule(
        "cloudflare_token",
        &["CLOUDFLARE", "cloudflare", "Cloudflare", "CF_API"],
        "[A-Za-z0-9_-]{37,}",
    )
    .with_check(check::looks_random),
    prefix_rule("cloudflare_token", &["v1.0-"], "[a-f0-9]{24}-[a-f0-9]{146,}"),
    prefix_rule("alibaba_key", &["LTAI"], "[A-Za-z0-9]{17,}")
        .with_edge(AnchorEdge::Word)
        .with_check(check::looks_random),
    prefix_rule("flyio_token", &["FlyV1 fm2_", "fm2_", "fo1_"], "[A-Za-z0-9+/=_,-]{40,}")
        .with_limit(2048)
        .with_edge(AnchorEdge::Word),
    prefix_rule("netlify_token", &["nfp_"], "[A-Za-z0-9]{36,}"),
    prefix_rule("render_key", &["rnd_"], "[A-Za-z0-9]{28,}")
        .with_edge(AnchorEdge::Word)
        .with_check(check::looks_random),
    prefix_rule("scaleway_key", &["SCW"], "[A-Z0-9]{17}")
        .with_edge(AnchorEdge::Word)
        .with_check(check::looks_varied),
    // code hosting and package registries
    prefix_rule("github_token", &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], "[A-Za-z0-9_]{30,}"),
    prefix_rule("github_token", &["github_pat_"], "[A-Za-z0-9_]{22,}"),
    prefix_rule(
        "gitlab_token",
        &[
            "glpat-", "gldt-", "glrt-", "glrtr-", "glcbt-", "glptt-", "glft-", "glsoat-", "glimt-",
            "glagent-", "gloas-", "glffct-", "glwt-",
        ],
        "[A-Za-z0-9_.-]{18,}",
    ),
    prefix_rule("gitlab_token", &["GR1348941"], "[A-Za-z0-9_-]{20,}"),
    prefix_rule("bitbucket_token", &["ATBB"], "[A-Za-z0-9]{28,}").with_edge(AnchorEdge::Word),
    prefix_rule("npm_token", &["npm_"], "[A-Za-z0-9]{36,}"),
    prefix_rule("pypi_token", &["pypi-"], "[A-Za-z0-9_-]{40,}")
        .with_check(check::looks_random)
        .with_limit(1024),
    prefix_rule("crates_io_token", &["cio"], "[A-Za-z0-9]{32}").with_edge(AnchorEdge::Apart(b"+/")),
    prefix_rule("rubygems_token", &["rubygems_"], "[a-f0-9]{48,}"),
    prefix_rule("nuget_key", &["oy2"], "[a-z0-9]{43}")
        .with_edge(AnchorEdge::Word)
        .with_check(check::looks_random),
    prefix_rule("clojars_token", &["CLOJARS_"], "[A-Za-z0-9]{60,}"),
    prefix_rule("dockerhub_token", &["dckr_pat_", "dckr_oat_"], "[A-Za-z0-9_-]{20,}"),
    prefix_rule("artifactory_key", &["AKCp"], "[A-Za-z0-9]{60,}").with_edge(AnchorEdge::Word),
    prefix_rule("sourcegraph_token", &["sgp_"], "[A-Za-z0-9_]{40,}")
        .with_check(check::looks_random),
    prefix_rule("buildkite_token", &["bkua_", "bkaj_", "bkct_"], "[a-z0-9]{40,}"),
    prefix_rule("circleci_token", &["CCIPAT_", "CCIPRJ_"], "[A-Za-z0-9_]{40,}"),
    prefix_rule("pulumi_token", &["pul-"], "[a-f0-9]{40,}").with_edge(AnchorEdge::Word),
    prefix_rule("terraform_token", &[".atlasv1."], "[A-Za-z0-9_=-]{40,}").with_back(14),
    prefix_rule("vault_token", &["hvs.", "hvb.", "hvr."], "[A-Za-z0-9_-]{20,}")
        .with_edge(AnchorEdge::Word)
        .with_check(check::looks_random),
    prefix_rule(
        "doppler_token",
        &["dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "dp.scim.", "dp.audit.", "dp.said."],
        "[A-Za-z0-9_.-]{30,}",
    ),
    prefix_rule("onepassword_token", &["ops_eyJ"], "[A-Za-z0-9_=-]{60,}").with_limit(4096),
    prefix_rule(
        "onepassword_key",
        &["A3-"],
        "[A-Z0-9]{6}-[A-Z0-9]{5,11}-[A-Z0-9]{5}-[A-Z0-9]{5}(?:-[A-Z0-9]{5})*",
    )
    .with_edge(AnchorEdge::Word),
    prefix_rule("infisical_token", &["st."], r"[a-f0-9]{24}\.[a-f0-9]{32}\.[a-f0-9]{32,}")
        .with_edge(AnchorEdge::Word),
    prefix_rule(
        "age_key",
        &["AGE-SECRET-KEY-1", "AGE-PLUGIN-", "age-secret-key-1"],
        "[A-Za-z0-9-]{40,}",
    ),
    prefix_rule("tailscale_key", &["tskey-"], "[A-Za-z0-9-]{16,}").with_check(check::looks_random),
    // model providers
    prefix_rule("anthropic_key", &["sk-ant-"], "[A-Za-z0-9_-]{16,}").with_rank(3),
    prefix_rule(
        "openai_key",
        &["sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"],
        "[A-Za-z0-9_-]{20,}",
    )
    .with_rank(3),
    prefix_rule("openrouter_key", &["sk-or-v1-"], "[A-Za-z0-9]{32,}").with_rank(3),
    prefix_rule("openai_key", &["sk-"], "[A-Za-z0-9_-]{20,}")
        .with_edge(AnchorEdge::Apart(b"-"))
        .with_check(check::looks_random),
    prefix_rule("huggingface_token", &["hf_", "api_org_"], "[A-Za-z0-9]{30,}")
        .with_edge(AnchorEdge::Word),
    prefix_rule("groq_key", &["gsk_"], "[A-Za-z0-9]{40,}").with_edge(AnchorEdge::Word),
    prefix_rule("xai_key", &["xai-"], "[A-Za-z0-9_]{60,}").with_edge(AnchorEdge::Word),
    prefix_rule("perplexity_key", &["pplx-"], "[A-Za-z0-9]{40,}"),
    prefix_rule("replicate_token", &["r8_"], "[A-Za-z0-9]{36,}").with_edge(AnchorEdge::Word),
    prefix_rule("langsmith_key", &["lsv2_pt_", "lsv2_sk_"], "[a-f0-9]{32}_[a-f0-9]{10,}"),
    prefix_rule("tavily_key", &["tvly-"], "[A-Za-z0-9_-]{20,}").with_check(check::looks_random),
    prefix_rule("wandb_key", &["wandb_v1_"], "[A-Za-z0-9_]{40,}"),
    prefix_rule("nvidia_key", &["nvapi-"], "[A-Za-z0-9_-]{50,}"),
    // messaging
    prefix_rule(
        "slack_token",
        &["xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxc-", "xoxd-", "xoxe-", "xoxe.", "xapp-"],
        "[A-Za-z0-9%/+._-]{16,}",
    )
    .with_limit(1024)
    .with_check(check::looks_varied),
    lead_rule(
        "slack_webhook",
        &["hooks.slack.com/"],
        r"(?:services|workflows|triggers)/",
        "[A-Za-z0-9/_+-]{20,}",
    )
    .with_check(check::looks_random),
    lead_rule(
        "discord_webhook",
        &["discord.com/api/", "discordapp.com/api/"],
        r"(?:v[0-9]{1,2}/)?webhooks/[0-9]{16,20}/",
        "[A-Za-z0-9_-]{40,}",
    ),
    prefix_rule(
        "discord_token",
        DISCORD_TOKEN_PREFIXES,
        r"[A-Za-z0-9_-]{20,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",
    )
    .with_edge(AnchorEdge::Word),
    lead_rule("telegram_token", &[":AA"], "", "[A-Za-z0-9_-]{32,}").with_edge(AnchorEdge::Digit),
    lead_rule(
        "teams_webhook",
        &["webhook.office.com/webhookb2/"],
        "[0-9a-f@-]{36,80}/IncomingWebhook/",
        "[0-9a-f]{32}/[0-9a-f-]{36,}",
    ),
    prefix_rule("sendgrid_key", &["SG."], r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}")
        .with_edge(AnchorEdge::Word)
        .with_check(check::looks_random),
    prefix_rule("mailgun_key", &["key-"], "[0-9a-f]{32,}")
        .with_edge(AnchorEdge::Word)
        .with_check(check::looks_varied),
    prefix_rule("mailchimp_key", &["-us"], "[0-9]{1,2}").with_back(32).with_check(is_mailchimp_key),
    prefix_rule("brevo_key", &["xkeysib-", "xsmtpsib-"], "[a-f0-9]{40,}(?:-[A-Za-z0-9]{16,})?"),
    prefix_rule("resend_key", &["re_"], "[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}")
        .with_edge(AnchorEdge::Word),
    prefix_rule("twilio_key", &["SK"], "[0-9a-f]{32,}")
        .with_edge(AnchorEdge::Word)
        .with_check(check::looks_varied),
    assignment_rule("twilio_token", &["TWILIO", "twilio", "Twilio"], "[0-9a-f]{32,}")
        .with_check(check::looks_varied),
    // payment and commerce
    prefix_rule(
        "stripe_key",
        &["sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_"],
        "[A-Za-z0-9+/=_]{16,}",
    ),
    prefix_rule(
        "shopify_token",
        &["shpat_", "shpca_", "shppa_", "shpss_", "shptka_"],
        "[a-fA-F0-9]{32,}",
    ),
    prefix_rule("square_token", &["sq0atp-", "sq0csp-", "sq0idp-"], "[A-Za-z0-9_-]{20,}"),
    prefix_rule("square_token", &["EAAA"], "[A-Za-z0-9_-]{58,}")
        .with_edge(AnchorEdge::Apart(b"+/"))
        .with_check(check::looks_random),
    prefix_rule(
        "braintree_token",
        &["access_token$production$", "access_token$sandbox$"],
        "[a-z0-9]{16}[$][a-f0-9]{32}",
    ),
    prefix_rule(
        "plaid_token",
        &["access-production-", "access-sandbox-", "access-development-"],
        "[0-9a-f-]{36}",
    ),
    prefix_rule("easypost_key", &["EZAK", "EZTK"], "[A-Za-z0-9]{54,}").with_edge(AnchorEdge::Word),
    // monitoring
    assignment_rule(
        "datadog_key",
        &[
            "DD_API_KEY",
            "DD_APP_KEY",
            "DD-API-KEY",
            "dd-api-key",
            "DD-APPLICATION-KEY",
            "datadog",
            "DATADOG",
            "Datadog",
        ],
        "[0-9a-f]{32,}",
    )
    .with_check(check::looks_varied),
    prefix_rule("datadog_key", &["ddapp_", "ddpat_"], "[A-Za-z0-9]{30,}"),
    prefix_rule(
        "newrelic_key",
        &["NRAK-", "NRII-", "NRIQ-", "NRSP-", "NRRA-", "NRJS-"],
        "[A-Za-z0-9_-]{16,}",
    ),
    prefix_rule("newrelic_key", &["NRAL"], "").with_back(36).with_check(is_newrelic_key),
    prefix_rule("grafana_token", &["glsa_", "glc_"], "[A-Za-z0-9_+/=]{32,}")
        .with_edge(AnchorEdge::Word),
    prefix_rule("sentry_token", &["sntrys_", "sntryu_"], "[A-Za-z0-9_+/=.-]{40,}"),
    prefix_rule("honeycomb_key", &["hcaik_", "hcbik_", "hcamk_"], "[a-z0-9]{40,}"),
    prefix_rule("posthog_key", &["phx_"], "[A-Za-z0-9]{40,}").with_edge(AnchorEdge::Word),
    prefix_rule(
        "dynatrace_token",
        &["dt0c01.", "dt0s01.", "dt0s02."],
        r"[A-Z0-9]{8,24}\.[A-Z0-9]{60,}",
    ),
    // project management and collaboration
    prefix_rule("linear_key", &["lin_api_", "lin_oauth_", "lin_wh_"], "[A-Za-z0-9]{32,}"),
    prefix_rule("notion_token", &["ntn_"], "[A-Za-z0-9]{40,}").with_edge(AnchorEdge::Word),
    prefix_rule("notion_token", &["secret_"], "[A-Za-z0-9]{43,}")
        .with_edge(AnchorEdge::Word)
        .with_check(check::looks_random),
    prefix_rule("atlassian_token", &["ATATT3", "ATCTT3", "ATOTT3"], "[A-Za-z0-9_=-]{60,}"),
    assignment_rule(
        "asana_token",
        &["ASANA", "asana", "Asana"],
        "(?:[0-9]/[0-9]{10,}(?:/[0-9]{10,})?:)?[0-9a-f]{32,}",
    )
    .with_check(check::looks_varied),
    prefix_rule("airtable_token", &["pat"], r"[A-Za-z0-9]{14}\.[a-f0-9]{60,}")
        .with_edge(AnchorEdge::Word),
    prefix_rule("figma_token", &["figd_", "figo_", "figu_"], "[A-Za-z0-9_-]{36,}"),
    prefix_rule("postman_key", &["PMAK-"], "[a-f0-9]{24}-[a-f0-9]{34,}"),
    prefix_rule("databricks_token", &["dapi", "dkea", "dose"], "[0-9a-f]{32,}(?:-[0-9]{1,2})?")
        .with_edge(AnchorEdge::Word),
    prefix_rule("snyk_token", &["snyk_uat.", "snyk_sat."], "[A-Za-z0-9_.-]{30,}"),
    prefix_rule("contentful_token", &["CFPAT-"], "[A-Za-z0-9_-]{40,}"),
    prefix_rule("supabase_key", &["sbp_", "sb_secret_"], "[A-Za-z0-9_]{30,}")
        .with_edge(AnchorEdge::Word),
    prefix_rule(
        "planetscale_token",
        &["pscale_tkn_", "pscale_pw_", "pscale_oauth_"],
        "[A-Za-z0-9_.=-]{32,}",
    ),
    prefix_rule("prefect_key", &["pnu_", "pnb_"], "[A-Za-z0-9]{36,}").with_edge(AnchorEdge::Word),
    prefix_rule("facebook_token", &["EAAC", "EAAB"], "[A-Za-z0-9]{60,}")
        .with_edge(AnchorEdge::Apart(b"+/"))
        .with_check(check::looks_random),
    // generic formats
    prefix_rule("jwt", &["eyJ"], r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}")
        .with_edge(AnchorEdge::Apart(b"-"))
        .with_limit(16 * 1024),
    prefix_rule(
        "kubernetes_token",
        &["eyJ"],
        r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}",
    )
    .with_edge(AnchorEdge::Apart(b"-"))
    .with_limit(16 * 1024)
    .with_rank(3)
    .with_check(check::is_kubernetes_token),
    lead_rule(
        "private_key",
        &["-----BEGIN "],
        r"[A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----",
        PEM_BODY_PATTERN,
    )
    .with_limit(32 * 1024)
    .with_rank(3),
    prefix_rule("private_key", &["LS0tLS1CRUdJTi"], r"[A-Za-z0-9+/]{60,}={0,2}")
        .with_edge(AnchorEdge::Apart(b"+/"))
        .with_limit(32 * 1024)
        .with_check(check::is_private_key),
    lead_rule(
        "private_key",
        &["PuTTY-User-Key-File-"],
        r"[0-9]: [ -~]{0,64}",
        r"(?:[\r\n]|\\[rn])[A-Za-z0-9+/=:.,@ \r\n\\-]{64,}",
    )
    .with_limit(32 * 1024),
    // base64 of tokens of a few services, at each of the three alignments
    prefix_rule("encoded_token", BASE64_TOKEN_PREFIXES, "[A-Za-z0-9+/_-]{24,}={0,2}")
        .with_limit(1024)
        .with_rank(1)
        .with_check(check::is_encoded_token),
    // URLs and connection strings
    lead_rule(
        "database_password",
        &[
            "postgres://",
            "postgresql://",
            "mysql://",
            "mariadb://",
            "mongodb://",
            "mongodb+srv://",
            "redis://",
            "rediss://",
            "amqp://",
            "amqps://",
            "mssql://",
            "sqlserver://",
            "clickhouse://",
            "nats://",
            "cockroachdb://",
        ],
        r#"[^\x00-\x20\x7f:/@"'<>\\`]{0,128}:"#,
        r#"[^\x00-\x20\x7f/"'<>\\`]{1,256}@"#,
    )
    .with_trim(1)
    .with_rank(2)
    .with_check(check::is_url_password),
    lead_rule(
        "url_password",
        &["://"],
        r#"[^\x00-\x20\x7f:/@"'<>\\`?#()\[\]{},;]{0,128}:"#,
        r#"[^\x00-\x20\x7f/"'<>\\`?#()\[\],;]{3,256}@"#,
    )
    .with_trim(1)
    .with_rank(1)
    .with_check(check::is_url_password),
    // headers and configuration files
    lead_rule(
        "authorization",
        &["Authorization", "authorization", "AUTHORIZATION"],
        r#"\\{0,8}["'`]?\]?\s{0,3}[:=,]\s{0,3}\\{0,8}["'`]?(?:[A-Za-z]{2,16}\s{1,3})"#,
        r"[A-Za-z0-9._~+/-]{8,}={0,2}",
    )
    .with_limit(16 * 1024)
    .with_rank(1)
    .with_check(check::is_quoted_secret),
    lead_rule(
        "bearer_token",
        &["Bearer", "bearer", "BEARER"],
        r"(?:\s|%20){1,3}",
        r"[A-Za-z0-9._~+/-]{12,}={0,2}",
    )
    .with_limit(16 * 1024)
    .with_rank(1)
    .with_check(check::looks_random),
    lead_rule("basic_auth", &["Basic ", "basic "], "", r"[A-Za-z0-9+/]{8,}={0,2}")
        .with_limit(4096)
        .with_check(is_basic_credential),
    lead_rule(
        "netrc_password",
        &["login "],
        r"\S{1,80}\s{1,8}password\s{1,4}",
        r#"[^\x00-\x20\x7f"'\\]{4,}"#,
    )
    .with_edge(AnchorEdge::Word),
    lead_rule(
        "curl_password",
        &["curl "],
        r#"[^\n]{0,200}(?:-u|--user)[ =]["']?[^\x00-\x20\x7f:"']{1,64}:"#,
        r#"[^\x00-\x20\x7f"'@]{4,}"#,
    )
    .with_rank(1)
    .with_check(check::is_url_password),
    lead_rule(
        "cookie",
        &["Cookie: ", "cookie: "],
        r"[A-Za-z0-9_.-]{0,40}(?:sess|sid|auth|jwt)[A-Za-z0-9_.-]{0,24}=",
        r"[A-Za-z0-9%._~+/=-]{16,}",
    )
    .with_limit(4096)
    .with_rank(1)
    .with_check(check::looks_random),
    // values that are assigned to a name that suggests a secret
    guess_rule(ASSIGN_QUOTED_PATTERN, r#"[^\x00-\x20\x7f"'`\\<>]{8,}"#, check::is_quoted_secret)
        .with_limit(16 * 1024),
    guess_rule(ARGUMENT_PATTERN, r#"[^\x00-\x20\x7f"'`\\<>]{16,}"#, check::is_argument_secret)
        .with_limit(16 * 1024),
    guess_rule(ASSIGN_TIGHT_PATTERN, BARE_VALUE_PATTERN, check::is_tight_assignment)
        .with_limit(1024),
    guess_rule(ASSIGN_LOOSE_PATTERN, BARE_VALUE_PATTERN, check::is_loose_assignment)
        .with_limit(1024),
    guess_rule(r"[A-Za-z0-9_-]{0,24}>", "[^\\x00-\\x20\\x7f<>&\"']{8,}</", check::is_quoted_secret)
        .with_trim(2),
    lead_rule(
        GUESS_KIND,
        &["--password", "--passphrase", "--token", "--secret", "--api-key", "--access-token"],
        "[a-z-]{0,16}[ =]",
        BARE_VALUE_PATTERN,
    )
    .with_rank(1)
    .with_check(check::is_tight_assignment),
];

/// First three characters of a Discord token: base64 of the digits of an id.
const DISCORD_TOKEN_PREFIXES: &[&str] = &[
    "MTA", "MTE", "MTI", "MTM", "MTQ", "MTU", "MTY", "MTc", "MTg", "MTk", "MjA", "MjE", "MjI",
    "MjM", "MjQ", "MjU", "MjY", "Mjc", "Mjg", "Mjk", "MzA", "MzE", "MzI", "MzM", "MzQ", "MzU",
    "MzY", "Mzc", "Mzg", "Mzk", "NDA", "NDE", "NDI", "NDM", "NDQ", "NDU", "NDY", "NDc", "NDg",
    "NDk", "NTA", "NTE", "NTI", "NTM", "NTQ", "NTU", "NTY", "NTc", "NTg", "NTk", "NjA", "NjE",
    "NjI", "NjM", "NjQ", "NjU", "NjY", "Njc", "Njg", "Njk", "NzA", "NzE", "NzI", "NzM", "NzQ",
    "NzU", "NzY", "Nzc", "Nzg", "Nzk", "ODA", "ODE", "ODI", "ODM", "ODQ", "ODU", "ODY", "ODc",
    "ODg", "ODk", "OTA", "OTE", "OTI", "OTM", "OTQ", "OTU", "OTY", "OTc", "OTg", "OTk",
];

/// Base64 of token prefixes: the characters that do not depend on the surrounding bytes.
const BASE64_TOKEN_PREFIXES: &[&str] = &[
    "4b3hiL",
    "4b3hwL",
    "5wbV",
    "BS0lB",
    "FLSU",
    "N5bl",
    "NrLWFudC",
    "NrLXByb2ot",
    "NrX2xpdmVf",
    "QUtJQ",
    "Y3luX",
    "Z2hvX",
    "Z2hwX",
    "Z2hzX",
    "Z2l0aHViX3BhdF",
    "Z2xwYXQt",
    "aGZf",
    "aHZzL",
    "bnBtX",
    "c2stYW50L",
    "c2stcHJvai",
    "c2tfbGl2ZV",
    "dob1",
    "doc1",
    "docF",
    "dpdGh1Yl9wYXRf",
    "dscGF0L",
    "eG94Yi",
    "eG94cC",
    "h2cy",
    "hveGIt",
    "hveHAt",
    "jeW5f",
    "naG9f",
    "naHBf",
    "naHNf",
    "naXRodWJfcGF0X",
    "nbHBhdC",
    "odnMu",
    "ucG1f",
    "za19saXZlX",
    "zay1hbnQt",
    "zay1wcm9qL",
];

/// Accepts 32 hexadecimal digits before the anchor.
fn is_mailchimp_key(secret: &[u8], _: &[u8]) -> bool {
    secret.len() >= 36 && secret[..32].iter().all(u8::is_ascii_hexdigit)
}

/// Accepts 36 hexadecimal digits before the anchor.
fn is_newrelic_key(secret: &[u8], _: &[u8]) -> bool {
    secret.len() == 40 && secret[..36].iter().all(u8::is_ascii_hexdigit)
}

/// Accepts a user name and a password in base64.
fn is_basic_credential(secret: &[u8], _: &[u8]) -> bool {
    let plain: Vec<u8> = secret.iter().copied().filter(|byte| *byte != b'=').collect();
    let whole = &plain[..plain.len() / 4 * 4];
    let decoded = data_encoding::BASE64_NOPAD.decode(whole).unwrap_or_default();
    let printable = decoded.iter().all(|byte| !byte.is_ascii_control());
    printable && (decoded.contains(&b':') || check::looks_random(secret, &[]))
}
