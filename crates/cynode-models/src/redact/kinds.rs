//! The table of rules: how secrets of each kind look, as their issuers document it.
//!
//! A row names *anchors*, the letters by which the scanner notices it. Either they are the start of
//! the secret, or they stand before it and what is between follows a pattern. Patterns have no upper
//! bounds of their own: `limit` bounds them all, so that a stream knows what to wait for.

use super::check::{self, any};

/// A check by code, after the patterns matched: the secret, and what comes after it.
type Check = fn(&[u8], &[u8]) -> bool;

/// One kind of secret in one of its forms.
pub(super) struct Row {
    /// What placeholders call it.
    pub(super) kind: &'static str,
    /// Who names a span that several rules found: the higher one.
    pub(super) rank: u8,
    /// What must stand before the anchor.
    pub(super) edge: Edge,
    /// How many letters and digits before the anchor belong to the secret.
    pub(super) back: usize,
    pub(super) anchors: Anchors,
    pub(super) head: Head,
    /// The secret, or the rest of it.
    pub(super) secret: &'static str,
    /// How many bytes at the end of `secret` only show that it ends.
    pub(super) trim: usize,
    /// How long it can be.
    pub(super) limit: usize,
    pub(super) check: Check,
}

/// What stands before an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    /// Anything.
    Any,
    /// Nothing that would make the anchor the middle of a word.
    Word,
    /// As `Word`, and none of these either, but at the start of a line. They join what a run of
    /// letters is made of, and without this each part of a long run would be tried.
    Apart(&'static [u8]),
    /// A digit.
    Digit,
}

/// Where the anchor stands.
#[derive(Clone, Copy)]
pub(super) enum Head {
    /// It is the start of the secret.
    InSecret,
    /// It stands before the secret, and this pattern between them.
    Before(&'static str),
}

/// The letters to look for.
#[derive(Clone, Copy)]
pub(super) enum Anchors {
    List(&'static [&'static str]),
    /// Words that announce a secret, in three spellings.
    Words,
}

/// Words that announce a secret.
const WORDS: &[&str] = &[
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

impl Anchors {
    pub(super) const fn list(self) -> &'static [&'static str] {
        match self {
            Self::List(list) => list,
            Self::Words => WORDS,
        }
    }

    /// The anchors as they are written in a pattern.
    pub(super) fn map_escaped(self) -> Vec<String> {
        self.list().iter().map(|anchor| escaped(anchor)).collect()
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if !c.is_ascii_alphanumeric() && c != '_' && c != ' ' && c != '-' && c != '/' && c != ':' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// A secret that starts with a known prefix.
const fn token(kind: &'static str, anchors: &'static [&'static str], secret: &'static str) -> Row {
    Row {
        kind,
        rank: 2,
        edge: Edge::Any,
        back: 0,
        anchors: Anchors::List(anchors),
        head: Head::InSecret,
        secret,
        trim: 0,
        limit: 512,
        check: any,
    }
}

/// A secret after known words and a pattern.
const fn after(
    kind: &'static str,
    anchors: &'static [&'static str],
    between: &'static str,
    secret: &'static str,
) -> Row {
    Row { head: Head::Before(between), ..token(kind, anchors, secret) }
}

/// A secret that is assigned to a name with one of the words.
const fn assigned(
    kind: &'static str,
    anchors: &'static [&'static str],
    secret: &'static str,
) -> Row {
    after(kind, anchors, ASSIGN, secret)
}

/// A guess: what is assigned to a name that announces a secret.
const fn guess(between: &'static str, secret: &'static str, check: Check) -> Row {
    Row { kind: GUESS, rank: 1, anchors: Anchors::Words, check, ..after("", &[], between, secret) }
}

/// The kind of guesses.
pub(super) const GUESS: &str = "secret";

impl Row {
    const fn edge(self, edge: Edge) -> Self {
        Self { edge, ..self }
    }

    const fn back(self, back: usize) -> Self {
        Self { back, ..self }
    }

    const fn trim(self, trim: usize) -> Self {
        Self { trim, ..self }
    }

    const fn limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    const fn check(self, check: Check) -> Self {
        Self { check, ..self }
    }
}

/// The rest of a name, and what assigns: `_2" : "`, also with quotes escaped as often as it takes.
const ASSIGN: &str = r#"[A-Za-z0-9_.-]{0,32}\\{0,8}["'`]?\]?[ \t]{0,4}(?:=>|:=|\?=|[:=,(])(?:[ \t]|\\{0,8}[nt]|\r?\n){0,4}\\{0,8}["'`]?"#;

/// As [`ASSIGN`], and a quote must follow.
const ASSIGN_QUOTED: &str = r#"[A-Za-z0-9_-]{0,24}\\{0,8}["'`]?\]?[ \t]{0,8}(?:=>|:=|\?=|==|!=|[:=])[ \t\n]{0,8}[bru]?#?\\{0,8}["'`]"#;

/// An argument in quotes: `set_token("`, `"TOKEN", "`.
const ARGUMENT: &str =
    r#"[A-Za-z0-9_-]{0,24}\\{0,8}["'`]?[ \t]{0,2}[(,][ \t\n]{0,8}[bru]?#?\\{0,8}["'`]"#;

/// As settings are written: `NAME=`.
const ASSIGN_TIGHT: &str = r"[A-Za-z0-9_-]{0,24}(?::=|\?=|=)";

/// As settings and code are written: `name: `, `name = `.
const ASSIGN_LOOSE: &str =
    r"[A-Za-z0-9_-]{0,24}(?:[ \t]{0,4}(?::=|\?=|[:=])[ \t]{1,4}|[ \t]{1,4}=|:| (?:is|was):? )";

/// A value without quotes, and what shows that it is a name in code: an assignment, a call.
const BARE: &str =
    r#"[^\x00-\x20\x7f"'`\\<>,;&(){}\[\]:=][^\x00-\x20\x7f"'`\\<>,;&(){}\[\]]{7,}(?: ?[={(\[<!])?"#;

/// Between the opening of a private key and its end: base64 with line ends as text has them, as JSON
/// escapes them, and with the marks of differences, quotations and numbered lines.
const PEM_BODY: &str = concat!(
    r#"(?:[\s\\nrt"'+,>|0-9-]{0,120}"#,
    r"(?:(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset|MessageID)[ :][ -\[\]-~]{0,120}[\s\\nrt>|+-]{1,96}){0,5}",
    r"[A-Za-z0-9+/]{16}[A-Za-z0-9+/\\]*={0,2})",
    r#"(?:[\s\\"'+,>|-]{1,96}(?:[0-9]{1,5}[\s|>:]{1,8})?[A-Za-z0-9+/\\]{8,}={0,2})*"#,
    // the last line may be short, and is followed by a checksum or the end
    r#"(?:(?:[\s\\"'+,>|0-9-]{1,96}[A-Za-z0-9+/\\]{1,80}={0,2})?"#,
    r#"(?:[\s\\"'+,>|0-9nr-]{1,96}=[A-Za-z0-9+/]{4})?"#,
    r#"[\s\\"'+,>|0-9nr-]{0,96}-----END [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----"#,
    r#"|[\s\\"'+,>|0-9-]{1,96}[A-Za-z0-9+/\\]{4,80}={0,2})?"#,
);

/// The rules. The order does not matter.
pub(super) const TABLE: &[Row] = &[
    // our own
    token(
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
        ],
        "[A-Za-z0-9_-]{16,}",
    )
    .rank(3),
    after("restate_key", &["key_"], "", r"[A-Za-z0-9]{16,}\.[A-Za-z0-9_-]{16,}").edge(Edge::Word),
    // clouds
    token("aws_access_key_id", &["AKIA"], "[A-Z0-9]{16}").check(check::varied),
    token("aws_access_key_id", &["ASIA", "ABIA", "ACCA"], "[A-Z0-9]{16}")
        .edge(Edge::Apart(b"+/"))
        .check(check::varied),
    assigned(
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
    assigned(
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
    .limit(4096),
    token("aws_bedrock_key", &["ABSK", "bedrock-api-key-"], "[A-Za-z0-9+/=_-]{64,}")
        .limit(4096)
        .edge(Edge::Word),
    token("gcp_api_key", &["AIza"], "[A-Za-z0-9_-]{35}").edge(Edge::Apart(b"+/")),
    token("google_oauth_secret", &["GOCSPX-"], "[A-Za-z0-9_-]{20,}"),
    token("google_oauth_token", &["ya29."], "[A-Za-z0-9_.-]{20,}").limit(2048).edge(Edge::Word),
    token("google_oauth_token", &["1//0"], "[A-Za-z0-9_-]{30,}")
        .edge(Edge::Word)
        .check(check::random),
    assigned(
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
    after("azure_sas", &["sig="], "", r"[A-Za-z0-9+/%]{42,}={0,2}").edge(Edge::Word),
    token("azure_client_secret", &["Q~"], "[A-Za-z0-9_~.-]{31,}").edge(Edge::Digit).back(4),
    token("digitalocean_token", &["dop_v1_", "doo_v1_", "dor_v1_"], "[a-f0-9]{32,}"),
    token("heroku_key", &["HRKU-"], "[A-Za-z0-9_-]{36,}"),
    assigned(
        "heroku_key",
        &["heroku", "HEROKU", "Heroku"],
        "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    ),
    assigned(
        "cloudflare_token",
        &["CLOUDFLARE", "cloudflare", "Cloudflare", "CF_API"],
        "[A-Za-z0-9_-]{37,}",
    )
    .check(check::random),
    token("cloudflare_token", &["v1.0-"], "[a-f0-9]{24}-[a-f0-9]{146,}"),
    token("alibaba_key", &["LTAI"], "[A-Za-z0-9]{17,}").edge(Edge::Word).check(check::random),
    token("flyio_token", &["FlyV1 fm2_", "fm2_", "fo1_"], "[A-Za-z0-9+/=_,-]{40,}")
        .limit(2048)
        .edge(Edge::Word),
    token("netlify_token", &["nfp_"], "[A-Za-z0-9]{36,}"),
    token("render_key", &["rnd_"], "[A-Za-z0-9]{28,}").edge(Edge::Word).check(check::random),
    token("scaleway_key", &["SCW"], "[A-Z0-9]{17}").edge(Edge::Word).check(check::varied),
    // code and packages
    token("github_token", &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], "[A-Za-z0-9_]{30,}"),
    token("github_token", &["github_pat_"], "[A-Za-z0-9_]{22,}"),
    token(
        "gitlab_token",
        &[
            "glpat-", "gldt-", "glrt-", "glrtr-", "glcbt-", "glptt-", "glft-", "glsoat-", "glimt-",
            "glagent-", "gloas-", "glffct-", "glwt-",
        ],
        "[A-Za-z0-9_.-]{18,}",
    ),
    token("gitlab_token", &["GR1348941"], "[A-Za-z0-9_-]{20,}"),
    token("bitbucket_token", &["ATBB"], "[A-Za-z0-9]{28,}").edge(Edge::Word),
    token("npm_token", &["npm_"], "[A-Za-z0-9]{36,}"),
    token("pypi_token", &["pypi-"], "[A-Za-z0-9_-]{40,}").check(check::random).limit(1024),
    token("crates_io_token", &["cio"], "[A-Za-z0-9]{32}").edge(Edge::Apart(b"+/")),
    token("rubygems_token", &["rubygems_"], "[a-f0-9]{48,}"),
    token("nuget_key", &["oy2"], "[a-z0-9]{43}").edge(Edge::Word).check(check::random),
    token("clojars_token", &["CLOJARS_"], "[A-Za-z0-9]{60,}"),
    token("dockerhub_token", &["dckr_pat_", "dckr_oat_"], "[A-Za-z0-9_-]{20,}"),
    token("artifactory_key", &["AKCp"], "[A-Za-z0-9]{60,}").edge(Edge::Word),
    token("sourcegraph_token", &["sgp_"], "[A-Za-z0-9_]{40,}").check(check::random),
    token("buildkite_token", &["bkua_", "bkaj_", "bkct_"], "[a-z0-9]{40,}"),
    token("circleci_token", &["CCIPAT_", "CCIPRJ_"], "[A-Za-z0-9_]{40,}"),
    token("pulumi_token", &["pul-"], "[a-f0-9]{40,}").edge(Edge::Word),
    token("terraform_token", &[".atlasv1."], "[A-Za-z0-9_=-]{40,}").back(14),
    token("vault_token", &["hvs.", "hvb.", "hvr."], "[A-Za-z0-9_-]{20,}")
        .edge(Edge::Word)
        .check(check::random),
    token(
        "doppler_token",
        &["dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "dp.scim.", "dp.audit.", "dp.said."],
        "[A-Za-z0-9_.-]{30,}",
    ),
    token("onepassword_token", &["ops_eyJ"], "[A-Za-z0-9_=-]{60,}").limit(4096),
    token(
        "onepassword_key",
        &["A3-"],
        "[A-Z0-9]{6}-[A-Z0-9]{5,11}-[A-Z0-9]{5}-[A-Z0-9]{5}(?:-[A-Z0-9]{5})*",
    )
    .edge(Edge::Word),
    token("infisical_token", &["st."], r"[a-f0-9]{24}\.[a-f0-9]{32}\.[a-f0-9]{32,}")
        .edge(Edge::Word),
    token("age_key", &["AGE-SECRET-KEY-1", "AGE-PLUGIN-", "age-secret-key-1"], "[A-Za-z0-9-]{40,}"),
    token("tailscale_key", &["tskey-"], "[A-Za-z0-9-]{16,}").check(check::random),
    // models
    token("anthropic_key", &["sk-ant-"], "[A-Za-z0-9_-]{16,}").rank(3),
    token(
        "openai_key",
        &["sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"],
        "[A-Za-z0-9_-]{20,}",
    )
    .rank(3),
    token("openrouter_key", &["sk-or-v1-"], "[A-Za-z0-9]{32,}").rank(3),
    token("openai_key", &["sk-"], "[A-Za-z0-9_-]{20,}")
        .edge(Edge::Apart(b"-"))
        .check(check::random),
    token("huggingface_token", &["hf_", "api_org_"], "[A-Za-z0-9]{30,}").edge(Edge::Word),
    token("groq_key", &["gsk_"], "[A-Za-z0-9]{40,}").edge(Edge::Word),
    token("xai_key", &["xai-"], "[A-Za-z0-9_]{60,}").edge(Edge::Word),
    token("perplexity_key", &["pplx-"], "[A-Za-z0-9]{40,}"),
    token("replicate_token", &["r8_"], "[A-Za-z0-9]{36,}").edge(Edge::Word),
    token("langsmith_key", &["lsv2_pt_", "lsv2_sk_"], "[a-f0-9]{32}_[a-f0-9]{10,}"),
    token("tavily_key", &["tvly-"], "[A-Za-z0-9_-]{20,}").check(check::random),
    token("wandb_key", &["wandb_v1_"], "[A-Za-z0-9_]{40,}"),
    token("nvidia_key", &["nvapi-"], "[A-Za-z0-9_-]{50,}"),
    // messages
    token(
        "slack_token",
        &["xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxc-", "xoxd-", "xoxe-", "xoxe.", "xapp-"],
        "[A-Za-z0-9%/+._-]{16,}",
    )
    .limit(1024)
    .check(check::varied),
    after(
        "slack_webhook",
        &["hooks.slack.com/"],
        r"(?:services|workflows|triggers)/",
        "[A-Za-z0-9/_+-]{20,}",
    )
    .check(check::random),
    after(
        "discord_webhook",
        &["discord.com/api/", "discordapp.com/api/"],
        r"(?:v[0-9]{1,2}/)?webhooks/[0-9]{16,20}/",
        "[A-Za-z0-9_-]{40,}",
    ),
    token("discord_token", DISCORD, r"[A-Za-z0-9_-]{20,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}")
        .edge(Edge::Word),
    after("telegram_token", &[":AA"], "", "[A-Za-z0-9_-]{32,}").edge(Edge::Digit),
    after(
        "teams_webhook",
        &["webhook.office.com/webhookb2/"],
        "[0-9a-f@-]{36,80}/IncomingWebhook/",
        "[0-9a-f]{32}/[0-9a-f-]{36,}",
    ),
    token("sendgrid_key", &["SG."], r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}")
        .edge(Edge::Word)
        .check(check::random),
    token("mailgun_key", &["key-"], "[0-9a-f]{32,}").edge(Edge::Word).check(check::varied),
    token("mailchimp_key", &["-us"], "[0-9]{1,2}").back(32).check(mailchimp),
    token("brevo_key", &["xkeysib-", "xsmtpsib-"], "[a-f0-9]{40,}(?:-[A-Za-z0-9]{16,})?"),
    token("resend_key", &["re_"], "[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}").edge(Edge::Word),
    token("twilio_key", &["SK"], "[0-9a-f]{32,}").edge(Edge::Word).check(check::varied),
    assigned("twilio_token", &["TWILIO", "twilio", "Twilio"], "[0-9a-f]{32,}").check(check::varied),
    // money and shops
    token(
        "stripe_key",
        &["sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_"],
        "[A-Za-z0-9+/=_]{16,}",
    ),
    token(
        "shopify_token",
        &["shpat_", "shpca_", "shppa_", "shpss_", "shptka_"],
        "[a-fA-F0-9]{32,}",
    ),
    token("square_token", &["sq0atp-", "sq0csp-", "sq0idp-"], "[A-Za-z0-9_-]{20,}"),
    token("square_token", &["EAAA"], "[A-Za-z0-9_-]{58,}")
        .edge(Edge::Apart(b"+/"))
        .check(check::random),
    token(
        "braintree_token",
        &["access_token$production$", "access_token$sandbox$"],
        "[a-z0-9]{16}[$][a-f0-9]{32}",
    ),
    token(
        "plaid_token",
        &["access-production-", "access-sandbox-", "access-development-"],
        "[0-9a-f-]{36}",
    ),
    token("easypost_key", &["EZAK", "EZTK"], "[A-Za-z0-9]{54,}").edge(Edge::Word),
    // watching
    assigned(
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
    .check(check::varied),
    token("datadog_key", &["ddapp_", "ddpat_"], "[A-Za-z0-9]{30,}"),
    token(
        "newrelic_key",
        &["NRAK-", "NRII-", "NRIQ-", "NRSP-", "NRRA-", "NRJS-"],
        "[A-Za-z0-9_-]{16,}",
    ),
    token("newrelic_key", &["NRAL"], "").back(36).check(newrelic),
    token("grafana_token", &["glsa_", "glc_"], "[A-Za-z0-9_+/=]{32,}").edge(Edge::Word),
    token("sentry_token", &["sntrys_", "sntryu_"], "[A-Za-z0-9_+/=.-]{40,}"),
    token("honeycomb_key", &["hcaik_", "hcbik_", "hcamk_"], "[a-z0-9]{40,}"),
    token("posthog_key", &["phx_"], "[A-Za-z0-9]{40,}").edge(Edge::Word),
    token("dynatrace_token", &["dt0c01.", "dt0s01.", "dt0s02."], r"[A-Z0-9]{8,24}\.[A-Z0-9]{60,}"),
    // work
    token("linear_key", &["lin_api_", "lin_oauth_", "lin_wh_"], "[A-Za-z0-9]{32,}"),
    token("notion_token", &["ntn_"], "[A-Za-z0-9]{40,}").edge(Edge::Word),
    token("notion_token", &["secret_"], "[A-Za-z0-9]{43,}").edge(Edge::Word).check(check::random),
    token("atlassian_token", &["ATATT3", "ATCTT3", "ATOTT3"], "[A-Za-z0-9_=-]{60,}"),
    assigned(
        "asana_token",
        &["ASANA", "asana", "Asana"],
        "(?:[0-9]/[0-9]{10,}(?:/[0-9]{10,})?:)?[0-9a-f]{32,}",
    )
    .check(check::varied),
    token("airtable_token", &["pat"], r"[A-Za-z0-9]{14}\.[a-f0-9]{60,}").edge(Edge::Word),
    token("figma_token", &["figd_", "figo_", "figu_"], "[A-Za-z0-9_-]{36,}"),
    token("postman_key", &["PMAK-"], "[a-f0-9]{24}-[a-f0-9]{34,}"),
    token("databricks_token", &["dapi", "dkea", "dose"], "[0-9a-f]{32,}(?:-[0-9]{1,2})?")
        .edge(Edge::Word),
    token("snyk_token", &["snyk_uat.", "snyk_sat."], "[A-Za-z0-9_.-]{30,}"),
    token("contentful_token", &["CFPAT-"], "[A-Za-z0-9_-]{40,}"),
    token("supabase_key", &["sbp_", "sb_secret_"], "[A-Za-z0-9_]{30,}").edge(Edge::Word),
    token(
        "planetscale_token",
        &["pscale_tkn_", "pscale_pw_", "pscale_oauth_"],
        "[A-Za-z0-9_.=-]{32,}",
    ),
    token("prefect_key", &["pnu_", "pnb_"], "[A-Za-z0-9]{36,}").edge(Edge::Word),
    token("facebook_token", &["EAAC", "EAAB"], "[A-Za-z0-9]{60,}")
        .edge(Edge::Apart(b"+/"))
        .check(check::random),
    // forms
    token("jwt", &["eyJ"], r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}")
        .edge(Edge::Apart(b"-"))
        .limit(16 * 1024),
    token(
        "kubernetes_token",
        &["eyJ"],
        r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}",
    )
    .edge(Edge::Apart(b"-"))
    .limit(16 * 1024)
    .rank(3)
    .check(check::kubernetes),
    after("private_key", &["-----BEGIN "], r"[A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----", PEM_BODY)
        .limit(32 * 1024)
        .rank(3),
    token("private_key", &["LS0tLS1CRUdJTi"], r"[A-Za-z0-9+/]{60,}={0,2}")
        .edge(Edge::Apart(b"+/"))
        .limit(32 * 1024)
        .check(check::private_key),
    after(
        "private_key",
        &["PuTTY-User-Key-File-"],
        r"[0-9]: [ -~]{0,64}",
        r"(?:[\r\n]|\\[rn])[A-Za-z0-9+/=:.,@ \r\n\\-]{64,}",
    )
    .limit(32 * 1024),
    // a token of a few services in base64, at each of the three places of a group
    token("encoded_token", ENCODED, "[A-Za-z0-9+/_-]{24,}={0,2}")
        .limit(1024)
        .rank(1)
        .check(check::encoded),
    // addresses
    after(
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
    .trim(1)
    .rank(2)
    .check(check::url_password),
    after(
        "url_password",
        &["://"],
        r#"[^\x00-\x20\x7f:/@"'<>\\`?#()\[\]{},;]{0,128}:"#,
        r#"[^\x00-\x20\x7f/"'<>\\`?#()\[\],;]{3,256}@"#,
    )
    .trim(1)
    .rank(1)
    .check(check::url_password),
    // headers and files
    after(
        "authorization",
        &["Authorization", "authorization", "AUTHORIZATION"],
        r#"\\{0,8}["'`]?\]?\s{0,3}[:=,]\s{0,3}\\{0,8}["'`]?(?:[A-Za-z]{2,16}\s{1,3})"#,
        r"[A-Za-z0-9._~+/-]{8,}={0,2}",
    )
    .limit(16 * 1024)
    .rank(1)
    .check(check::quoted),
    after(
        "bearer_token",
        &["Bearer", "bearer", "BEARER"],
        r"(?:\s|%20){1,3}",
        r"[A-Za-z0-9._~+/-]{12,}={0,2}",
    )
    .limit(16 * 1024)
    .rank(1)
    .check(check::random),
    after("basic_auth", &["Basic ", "basic "], "", r"[A-Za-z0-9+/]{8,}={0,2}")
        .limit(4096)
        .check(basic),
    after(
        "netrc_password",
        &["login "],
        r"\S{1,80}\s{1,8}password\s{1,4}",
        r#"[^\x00-\x20\x7f"'\\]{4,}"#,
    )
    .edge(Edge::Word),
    after(
        "curl_password",
        &["curl "],
        r#"[^\n]{0,200}(?:-u|--user)[ =]["']?[^\x00-\x20\x7f:"']{1,64}:"#,
        r#"[^\x00-\x20\x7f"'@]{4,}"#,
    )
    .rank(1)
    .check(check::url_password),
    after(
        "cookie",
        &["Cookie: ", "cookie: "],
        r"[A-Za-z0-9_.-]{0,40}(?:sess|sid|auth|jwt)[A-Za-z0-9_.-]{0,24}=",
        r"[A-Za-z0-9%._~+/=-]{16,}",
    )
    .limit(4096)
    .rank(1)
    .check(check::random),
    // what is assigned to a name that announces a secret
    guess(ASSIGN_QUOTED, r#"[^\x00-\x20\x7f"'`\\<>]{8,}"#, check::quoted).limit(16 * 1024),
    guess(ARGUMENT, r#"[^\x00-\x20\x7f"'`\\<>]{16,}"#, check::argument).limit(16 * 1024),
    guess(ASSIGN_TIGHT, BARE, check::tight).limit(1024),
    guess(ASSIGN_LOOSE, BARE, check::loose).limit(1024),
    guess(r"[A-Za-z0-9_-]{0,24}>", "[^\\x00-\\x20\\x7f<>&\"']{8,}</", check::quoted).trim(2),
    after(
        GUESS,
        &["--password", "--passphrase", "--token", "--secret", "--api-key", "--access-token"],
        "[a-z-]{0,16}[ =]",
        BARE,
    )
    .rank(1)
    .check(check::tight),
];

/// The first three letters of a Discord token: base64 of the digits of an id.
const DISCORD: &[&str] = &[
    "MTA", "MTE", "MTI", "MTM", "MTQ", "MTU", "MTY", "MTc", "MTg", "MTk", "MjA", "MjE", "MjI",
    "MjM", "MjQ", "MjU", "MjY", "Mjc", "Mjg", "Mjk", "MzA", "MzE", "MzI", "MzM", "MzQ", "MzU",
    "MzY", "Mzc", "Mzg", "Mzk", "NDA", "NDE", "NDI", "NDM", "NDQ", "NDU", "NDY", "NDc", "NDg",
    "NDk", "NTA", "NTE", "NTI", "NTM", "NTQ", "NTU", "NTY", "NTc", "NTg", "NTk", "NjA", "NjE",
    "NjI", "NjM", "NjQ", "NjU", "NjY", "Njc", "Njg", "Njk", "NzA", "NzE", "NzI", "NzM", "NzQ",
    "NzU", "NzY", "Nzc", "Nzg", "Nzk", "ODA", "ODE", "ODI", "ODM", "ODQ", "ODU", "ODY", "ODc",
    "ODg", "ODk", "OTA", "OTE", "OTI", "OTM", "OTQ", "OTU", "OTY", "OTc", "OTg", "OTk",
];

/// Prefixes of tokens in base64: the letters that do not depend on what is around them.
const ENCODED: &[&str] = &[
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

/// 32 hexadecimal digits before the anchor.
fn mailchimp(secret: &[u8], _: &[u8]) -> bool {
    secret.len() >= 36 && secret[..32].iter().all(u8::is_ascii_hexdigit)
}

/// 36 hexadecimal digits before the anchor.
fn newrelic(secret: &[u8], _: &[u8]) -> bool {
    secret.len() == 40 && secret[..36].iter().all(u8::is_ascii_hexdigit)
}

/// A name and a password in base64.
fn basic(secret: &[u8], _: &[u8]) -> bool {
    let plain: Vec<u8> = secret.iter().copied().filter(|byte| *byte != b'=').collect();
    let whole = &plain[..plain.len() / 4 * 4];
    let decoded = data_encoding::BASE64_NOPAD.decode(whole).unwrap_or_default();
    let printable = decoded.iter().all(|byte| !byte.is_ascii_control());
    printable && (decoded.contains(&b':') || check::random(secret, &[]))
}
