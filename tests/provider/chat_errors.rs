use omni_agent::provider::{
    ProviderError,
    ProviderErrorKind::{self, *},
    Request,
    custom::{
        AnthropicMessages, ChatCompletions, Dialect, Frame, GoogleGemini, OllamaChat, OpenAiResponses,
        ReasoningReturn,
    },
};

fn error(status: u16, body: &str) -> ProviderError {
    ChatCompletions::default().error(status, body)
}

#[rustfmt::skip] // one line per case
/// Error replies: the status, the body, the expected kind, whether a retry can help, and a part of the message.
const BODIES: &[(u16, &str, ProviderErrorKind, bool, &str)] = &[
    // OpenAI
    (401, r#"{"error":{"message":"Incorrect API key provided: sk-x.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#, Auth, false, "Incorrect API key"),
    (401, r#"{"error":{"message":"You didn't provide an API key.","type":"invalid_request_error","param":null,"code":null}}"#, Auth, false, "didn't provide"),
    (403, r#"{"error":{"message":"Country not supported","type":"request_forbidden","code":"unsupported_country_region_territory"}}"#, Auth, false, "Country"),
    (403, r#"{"error":{"message":"Missing scopes: model.request","type":"invalid_request_error","code":"insufficient_permissions"}}"#, Auth, false, "scopes"),
    (429, r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#, Quota, false, "exceeded"),
    (429, r#"{"error":{"message":"Rate limit reached for m on tokens per min (TPM): Limit 1, Used 1.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#, RateLimit, true, "Rate limit reached"),
    (429, r#"{"error":{"message":"Request too large for m on tokens per min (TPM): Limit 10, Requested 12.","type":"tokens","code":"rate_limit_exceeded"}}"#, RateLimit, false, "Request too large"),
    (400, r#"{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#, ContextTooLong, false, "8192"),
    (400, r#"{"error":{"message":"Unsupported value","type":"invalid_request_error","param":"temperature","code":"unsupported_value"}}"#, InvalidRequest, false, "Unsupported value"),
    (404, r#"{"error":{"message":"The model does not exist","type":"invalid_request_error","param":null,"code":"model_not_found"}}"#, InvalidRequest, false, "does not exist"),
    // OpenRouter, if no host of the model reads images
    (404, r#"{"error":{"message":"No endpoints found that support image input","code":404}}"#, Unsupported, false, "image input"),
    (404, r#"{"error":{"message":"No endpoints found that support tool use.","code":404}}"#, InvalidRequest, false, "tool use"),
    (500, r#"{"error":{"message":"The server had an error","type":"server_error","param":null,"code":null}}"#, Service, true, "had an error"),
    (503, r#"{"error":{"message":"The engine is currently overloaded, please try again later","type":"server_error"}}"#, Overloaded, true, "overloaded"),
    (503, r#"{"error":{"message":"Slow Down","type":"server_error","code":"slow_down"}}"#, Overloaded, true, "Slow"),
    (409, r#"{"error":{"message":"Conflict","type":"invalid_request_error"}}"#, Service, true, "Conflict"),
    (408, r#"{"error":{"message":"Timed out"}}"#, Timeout, true, "Timed out"),
    (500, r#"{"error":{"message":"bad","type":"invalid_request_error"}}"#, InvalidRequest, false, "bad"),
    (400, r#"{"error":{"message":"odd","type":"server_error"}}"#, InvalidRequest, false, "odd"),
    // Azure sends the status as a string in `code`.
    (429, r#"{"error":{"code":"429","message":"Requests have exceeded the call rate limit."}}"#, RateLimit, true, "call rate"),
    // GitHub's gateway.
    (400, r#"{"error":{"message":"prompt token count of 9 exceeds the limit of 4","code":"model_max_prompt_tokens_exceeded"}}"#, ContextTooLong, false, "9"),
    // Anthropic.
    (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 200001 tokens > 200000 maximum"},"request_id":"req_1"}"#, ContextTooLong, false, "too long"),
    (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 1 + 2 > 2"}}"#, ContextTooLong, false, "exceed"),
    (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}}"#, Quota, false, "credit"),
    (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2026-04-01 at 00:00 UTC."}}"#, Quota, false, "regain"),
    (401, r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#, Auth, false, "x-api-key"),
    (402, r#"{"type":"error","error":{"type":"billing_error","message":"pay"}}"#, Quota, false, "pay"),
    (403, r#"{"type":"error","error":{"type":"permission_error","message":"no"}}"#, Auth, false, "no"),
    (413, r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#, InvalidRequest, false, "maximum size"),
    (429, r#"{"type":"error","error":{"type":"rate_limit_error","message":"limit"}}"#, RateLimit, true, "limit"),
    (500, r#"{"type":"error","error":{"type":"api_error","message":"Internal server error"}}"#, Service, true, "Internal"),
    (504, r#"{"type":"error","error":{"type":"timeout_error","message":"late"}}"#, Timeout, true, "late"),
    (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Overloaded, true, "Overloaded"),
    // OpenRouter.
    (402, r#"{"error":{"code":402,"message":"This request requires more credits"}}"#, Quota, false, "credits"),
    (400, r#"{"error":{"code":400,"message":"Provider returned error","metadata":{"provider_name":"Acme","raw":"{\"error\":{\"message\":\"prompt is too long\",\"type\":\"invalid_request_error\"}}"}}}"#, ContextTooLong, false, "(Acme: prompt is too long)"),
    (429, r#"{"error":{"code":429,"message":"Provider returned error","metadata":{"provider_name":"Acme","raw":{"error":{"code":"insufficient_quota","message":"broke"}}}}}"#, Quota, false, "(Acme: broke)"),
    (502, r#"{"error":{"code":502,"message":"Provider returned error","metadata":{"raw":"socket hang up","provider_name":null}}}"#, Service, true, "(upstream: socket hang up)"),
    (403, r#"{"error":{"code":403,"message":"Your input was flagged","metadata":{"reasons":["x"],"flagged_input":"y"}}}"#, InvalidRequest, false, "flagged"),
    // llama.cpp.
    (400, r#"{"error":{"code":400,"message":"request (9 tokens) exceeds the available context size (4 tokens)","type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":4}}"#, ContextTooLong, false, "9 tokens"),
    (503, r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#, Overloaded, true, "Loading"),
    (501, r#"{"error":{"message":"This server does not support tools","type":"not_supported_error","code":501}}"#, Unsupported, false, "tools"),
    (404, r#"{"error":{"message":"File Not Found","type":"not_found_error","code":404}}"#, InvalidRequest, false, "File"),
    // Google.
    (400, r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID"}]}}"#, Auth, false, "API key"),
    (429, r#"[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED"}}]"#, RateLimit, true, "quota"),
    (503, r#"{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}"#, Overloaded, true, "overloaded"),
    (400, r#"{"error":{"code":400,"message":"The input token count (2) exceeds the maximum number of tokens allowed (1).","status":"INVALID_ARGUMENT"}}"#, ContextTooLong, false, "token count"),
    (504, r#"{"error":{"code":504,"message":"late","status":"DEADLINE_EXCEEDED"}}"#, Timeout, true, "late"),
    // Error replies of Groq, Moonshot, DeepSeek, Z.ai, Alibaba, xAI and vLLM.
    (413, r#"{"error":{"message":"Request too large for model m on tokens per minute (TPM): Limit 6, Requested 7","type":"tokens","code":"rate_limit_exceeded"}}"#, RateLimit, false, "TPM"),
    (429, r#"{"error":{"message":"The engine is currently overloaded","type":"engine_overloaded_error"}}"#, Overloaded, true, "engine"),
    (429, r#"{"error":{"message":"exceeded, please check your plan","type":"exceeded_current_quota_error"}}"#, Quota, false, "plan"),
    (400, r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 8","type":"invalid_request_error"}}"#, ContextTooLong, false, "token limit"),
    (402, r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}"#, Quota, false, "Balance"),
    (429, r#"{"error":{"code":"1113","message":"Insufficient balance or no resource package."}}"#, Quota, false, "balance"),
    (429, r#"{"error":{"code":"1302","message":"High concurrency usage"}}"#, RateLimit, true, "concurrency"),
    (429, r#"{"error":{"code":"1308","message":"Usage limit reached for 5 hour. Your limit will reset at 2026-09-09 05:38:28"}}"#, Quota, false, "5 hour"),
    (429, r#"{"error":{"code":"1310","message":"Weekly/Monthly Limit Exhausted. Your limit will reset at 2026-09-09 05:38:28"}}"#, Quota, false, "Weekly"),
    (400, r#"{"error":{"code":"1261","message":"Prompt exceeds max length"}}"#, ContextTooLong, false, "max length"),
    (400, r#"{"code":"Arrearage","message":"Access denied, account in debt","request_id":"r-1"}"#, Quota, false, "debt"),
    (401, r#"{"code":"InvalidApiKey","message":"No API-key provided.","request_id":"r-1"}"#, Auth, false, "API-key"),
    (429, r#"{"code":"Throttling.RateQuota","message":"Requests rate limit exceeded"}"#, RateLimit, true, "rate limit"),
    (400, r#"{"code":"x","error":"This model's maximum prompt length is 8 but the request contains 9 tokens."}"#, ContextTooLong, false, "prompt length"),
    (400, r#"{"object":"error","message":"This model's maximum context length is 9 tokens.","type":"BadRequestError","param":null,"code":400}"#, ContextTooLong, false, "9 tokens"),
    (422, r#"{"detail":[{"loc":["body","messages"],"msg":"field required","type":"value_error.missing"},{"msg":"and more"}]}"#, InvalidRequest, false, "field required; and more"),
    (404, r#"{"detail":"Not Found"}"#, InvalidRequest, false, "Not Found"),
    // TGI, DeepInfra, and servers for local models.
    (422, r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 500 `max_new_tokens`","error_type":"validation"}"#, ContextTooLong, false, "4096"),
    (422, r#"{"error":"Input validation error: `inputs` must have less than 4095 tokens. Given: 5000","error_type":"validation"}"#, ContextTooLong, false, "4095"),
    (400, r#"{"error":{"message":"Requested input length 13142 exceeds maximum input length 8191"}}"#, ContextTooLong, false, "8191"),
    (500, r#"{"error":{"message":"The length of prompt_tokens (5000) must be less than max_seq_len (4096)"}}"#, ContextTooLong, false, "4096"),
    (400, r#"{"error":"context overflow"}"#, ContextTooLong, false, "overflow"),
    (400, r#"{"object":"error","message":"The decoder prompt (length 10127) is longer than the maximum model length of 8192. Make sure that `max_model_len` is no smaller than the number of text tokens.","type":"BadRequestError","param":null,"code":400}"#, ContextTooLong, false, "10127"),
    // SGLang, Z.ai, SiliconFlow, OpenRouter, Volcengine, and gateways to Bedrock.
    (400, r#"{"error":{"code":400,"message":"Input length (600013 tokens) exceeds the maximum allowed length (536826 tokens). Use a shorter input or enable --allow-auto-truncate.","object":"error","param":null,"type":"BAD_REQUEST"},"model":"m"}"#, ContextTooLong, false, "600013"),
    (400, r#"{"error":{"code":"1261","message":"Prompt too long"}}"#, ContextTooLong, false, "too long"),
    (400, r#"{"error":{"code":"1210","message":"tokens in request more than max tokens allowed"}}"#, ContextTooLong, false, "max tokens"),
    (400, r#"{"code":20015,"message":"number of input tokens (204703) has exceeded max_prompt_tokens (202752) limit.","data":null}"#, ContextTooLong, false, "204703"),
    (400, r#"{"code":20015,"message":"number of input tokens (204703) has exceeded max_seq_len (131072) limit.","data":null}"#, ContextTooLong, false, "131072"),
    (400, r#"{"error":{"code":400,"message":"Input length 301574 exceeds the maximum allowed input length of 262112 tokens."}}"#, ContextTooLong, false, "301574"),
    (400, r#"{"error":{"code":"InvalidParameter","message":"Total tokens of image and text exceed max message tokens. Request id: 0217"}}"#, ContextTooLong, false, "0217"),
    (400, r#"{"error":{"message":"Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again."}}"#, ContextTooLong, false, "update"),
    (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"Too much media: 0 document pages + 102 images > 100"}}"#, ContextTooLong, false, "102"),
    (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"too many images and documents: 120 + 0 > 100"}}"#, ContextTooLong, false, "120"),
    (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.88.content.1.image.source.base64.data: At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels"}}"#, ContextTooLong, false, "2000"),
    (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.7.content.3.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels"}}"#, InvalidRequest, false, "8000"),
    (413, r#"{"error":{"code":"tokens_limit_reached","message":"Request body too large for gpt-4o model. Max size: 8000 tokens.","details":"Request body too large for gpt-4o model. Max size: 8000 tokens."}}"#, ContextTooLong, false, "8000"),
    (400, r#"{"error":{"message":"Requested generation length 1 is not possible! The provided prompt is 4309 tokens long, so generating 1 tokens requires a sequence length of 4310, but the maximum supported sequence length is just 4096!"}}"#, ContextTooLong, false, "4096"),
    (400, r#"{"error":{"message":"total message size 2100954 exceeds limit 2097152","type":"invalid_request_error"}}"#, ContextTooLong, false, "2097152"),
    (401, r#"{"error":{"message":"Your current plan supports only 256K context","type":"authentication_error"}}"#, ContextTooLong, false, "256K"),
    (400, r#"{"message":"Too many input tokens. Max input tokens: 8192, request input token count: 9279"}"#, ContextTooLong, false, "9279"),
    (400, r#"{"message":"The request is refused.","reason":"CONTENT_LENGTH_EXCEEDS_THRESHOLD"}"#, ContextTooLong, false, "refused"),
    (429, r#"{"error":{"message":"Too many tokens, please wait before trying again."}}"#, RateLimit, true, "wait"),
    (400, r#"{"error":{"message":"max_tokens (200000) exceeds the maximum of 64000"}}"#, InvalidRequest, false, "64000"),
    // Error replies that do not have the usual envelope `{"error": {…}}`.
    (400, r#"{"error":"model 'm' not found, try pulling it first"}"#, InvalidRequest, false, "try pulling"),
    (500, r#"{"error":"Internal Server Error","message":"it broke","status":500}"#, Service, true, "it broke"),
    (400, r#"{"errors":[{"code":7003,"message":"No route"}],"success":false}"#, InvalidRequest, false, "No route"),
    (500, r#"{"code":500,"msg":"404 NOT_FOUND","success":false}"#, Service, true, "404 NOT_FOUND"),
    (502, "<!DOCTYPE html>\n<html><head><title>502\n Bad Gateway</title></head><body>long</body></html>", Service, true, "502 Bad Gateway"),
    (524, "<html><body>no title</body></html>", Timeout, true, "page of markup"),
    (503, "upstream connect error", Service, true, "upstream connect error"),
    (503, "no healthy upstream: at capacity", Overloaded, true, "capacity"),
    (405, "", InvalidRequest, false, "no reason"),
    (500, "null", Service, true, "null"),
    (418, "[]", InvalidRequest, false, "[]"),
    (400, "{}", InvalidRequest, false, "{}"),
];

#[test]
fn error_bodies_of_services_map_to_their_kind() {
    for &(status, body, kind, retryable, part) in BODIES {
        let error = error(status, body);
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{status} {body}: {error}");
        assert!(error.message.contains(part), "{status} {body}: {error}");
        assert_eq!((error.status, error.body.as_deref()), (Some(status), Some(body)));
    }
}

#[test]
fn error_about_a_long_prompt_inside_an_answer_says_so() {
    let data = r#"{"error":{"code":400,"message":"Input length (600013 tokens) exceeds the maximum allowed length (536826 tokens). Use a shorter input or enable --allow-auto-truncate.","object":"error","param":null,"type":"BAD_REQUEST"},"model":"m"}"#;
    let mut decoder = ChatCompletions::default().decoder(&Request::default());
    let error = decoder.decode(Frame::new("", data), &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind, ContextTooLong, "{error}");
}

/// Returns the error for a body before an answer and the error for the same body inside an answer, in every format.
fn in_every_format(status: u16, body: &str) -> Vec<ProviderError> {
    let dialects: [Box<dyn Dialect>; 5] = [
        Box::new(AnthropicMessages::default()),
        Box::new(ChatCompletions::default()),
        Box::new(OpenAiResponses::default()),
        Box::new(GoogleGemini::default()),
        Box::new(OllamaChat::default()),
    ];
    let errors = dialects.iter().flat_map(|dialect| {
        let mut decoder = dialect.decoder(&Request::default());
        let inside = decoder.decode(Frame::new("error", body), &mut Vec::new()).unwrap_err();
        [dialect.error(status, body), inside]
    });
    errors.collect()
}

/// Cerebras answers with these codes: <https://inference-docs.cerebras.ai/support/error>.
#[test]
fn error_of_a_quota_per_minute_is_a_rate_limit_in_every_format() {
    let body = |code: &str, message: &str| {
        format!(
            r#"{{"error":{{"message":"{message}","type":"too_many_tokens_error","param":"quota","code":"{code}"}}}}"#
        )
    };
    let tokens = "Tokens per minute limit exceeded - too many tokens processed.";
    let requests = "Requests per minute limit exceeded - too many requests sent.";
    for (code, message, kind) in [
        ("token_quota_exceeded", tokens, RateLimit),
        ("request_quota_exceeded", requests, RateLimit),
        ("insufficient_quota", "Limit of tokens per min reached.", RateLimit),
        ("token_quota_exceeded", "The budget is spent.", Quota),
        ("insufficient_quota", "You exceeded your current quota.", Quota),
        ("billing_hard_limit", "Your credit balance allows no tokens per minute.", Quota),
    ] {
        for error in in_every_format(429, &body(code, message)) {
            assert_eq!((error.kind, error.retryable), (kind, kind == RateLimit), "{code}: {error}");
        }
    }
    let google = r#"{"error":{"code":429,"message":"Spent.","status":"QUOTA_EXCEEDED","details":[{"retryDelay":"7s"}]}}"#;
    for error in in_every_format(429, google) {
        assert_eq!((error.kind, error.retryable), (RateLimit, true), "{error}");
    }
    let spent = body("token_quota_exceeded", "Pay to raise your limit per minute.");
    assert_eq!(error(402, &spent).kind, Quota);
}

/// Groq rejects a response if the model wrote an unreadable call or JSON: <https://console.groq.com/docs/errors>.
#[test]
fn error_of_an_unreadable_call_is_retried_in_every_format() {
    for code in ["tool_use_failed", "json_validate_failed"] {
        let message =
            "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.";
        let body = format!(
            r#"{{"error":{{"message":"{message}","type":"invalid_request_error","code":"{code}","failed_generation":"<function=a","status_code":400}}}}"#
        );
        for error in in_every_format(400, &body) {
            assert_eq!((error.kind, error.retryable), (Service, true), "{code}: {error}");
        }
    }
}

#[test]
fn error_statuses_alone_map_to_their_kind() {
    for (status, kind, retryable) in [
        (400, InvalidRequest, false),
        (401, Auth, false),
        (402, Quota, false),
        (403, Auth, false),
        (404, InvalidRequest, false),
        (405, InvalidRequest, false),
        (408, Timeout, true),
        (409, Service, true),
        (413, InvalidRequest, false),
        (422, InvalidRequest, false),
        (429, RateLimit, true),
        (500, Service, true),
        (502, Service, true),
        (503, Service, true),
        (504, Timeout, true),
        (529, Overloaded, true),
        (301, InvalidRequest, false),
    ] {
        let error = error(status, "");
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{status}");
    }
}

#[test]
fn error_keeps_the_request_id_and_wait_of_the_body() {
    let anthropic = r#"{"type":"error","error":{"type":"api_error","message":"x"},"request_id":"req_1"}"#;
    assert_eq!(error(500, anthropic).request_id.as_deref(), Some("req_1"));
    let google = r#"{"error":{"code":429,"message":"x","status":"RESOURCE_EXHAUSTED","details":[
        {"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}"#;
    assert_eq!(error(429, google).retry_after.map(|wait| wait.as_millis()), Some(34_500));
    for odd in ["-1s", "1e999s", "NaNs", "s", "soon"] {
        let body = google.replace("34.5s", odd);
        assert_eq!(error(429, &body).retry_after, None, "{odd}");
    }
}

#[test]
fn error_of_a_rate_limit_keeps_the_wait_that_only_its_text_states() {
    for (text, wait) in [
        ("Please try again in 17.252s.", Some(17_252)),
        ("Please try again in 17 seconds.", Some(17_000)),
        ("Please try again in 7m12s. Visit us.", Some(432_000)),
        ("Please try again in 1h0m0.5s", Some(3_600_500)),
        ("please try again in 250ms", Some(250)),
        ("Please retry after 1 minute.", Some(60_000)),
        ("Please retry in 34.5s.", Some(34_500)),
        ("Please try again in a while.", None),
        ("Please try again in 5.", None),
        ("Please try again in 1.2.3s", None),
        ("Please try again in 99999999999999999999999999999999 days", None),
        ("Please try again later.", None),
    ] {
        let body =
            format!(r#"{{"error":{{"message":"Rate limit reached. {text}","code":"rate_limit_exceeded"}}}}"#);
        let error = error(429, &body);
        assert_eq!(error.kind, RateLimit);
        assert_eq!(error.retry_after.map(|wait| wait.as_millis()), wait, "{text}");
    }
    let stated = r#"[{"retryDelay":"5s"}]"#;
    let body = format!(r#"{{"error":{{"code":429,"message":"try again in 9s","details":{stated}}}}}"#);
    assert_eq!(error(429, &body).retry_after.map(|wait| wait.as_secs()), Some(5));
    assert_eq!(error(500, r#"{"error":{"message":"try again in 9s"}}"#).retry_after, None);
}

#[test]
fn error_of_a_gateway_keeps_its_own_words_beside_a_nested_error() {
    let body = r#"{"message":"slow down","code":"rate_limit_exceeded","upstream":{"error":{
        "message":"prompt is too long","code":"context_length_exceeded","request_id":"req_1"}}}"#;
    let error = error(400, body);
    assert_eq!((error.kind, &*error.message), (ProviderErrorKind::RateLimit, "slow down"));
    assert_eq!(error.request_id.as_deref(), Some("req_1"));
}

#[test]
fn error_inside_another_error_gives_its_wait_and_request_id() {
    let wait = r#"[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]"#;
    let nested = format!(r#"{{"error":{{"message":"inner","request_id":"req_1","details":{wait}}}}}"#);
    for body in [
        format!(r#"{{"error":{{"message":"outer","error":{nested}}}}}"#),
        format!(r#"{{"detail":{nested}}}"#),
        format!(r#"{{"type":"error","data":{nested}}}"#),
    ] {
        let error = error(429, &body);
        assert_eq!(error.retry_after.map(|wait| wait.as_millis()), Some(34_500), "{body}");
        assert_eq!(error.request_id.as_deref(), Some("req_1"), "{body}");
        assert_eq!(error.message, if body.contains("outer") { "outer" } else { "inner" }, "{body}");
    }
}

#[test]
fn error_with_a_long_body_shortens_it() {
    let long = "é".repeat(50_000);
    for body in [
        long.clone(),
        format!(r#"{{"error":{{"message":"{long}"}}}}"#),
        format!("<html><title>{long}</title>"),
        format!("<html><title>x</title>{long}"),
        format!(r#"{{"unknown":"{long}"}}"#),
        format!(r#"{{"error":{{"message":"x","metadata":{{"raw":"{long}"}}}}}}"#),
    ] {
        let error = error(500, &body);
        assert!(error.message.len() <= 1100, "{}", error.message.len());
        assert!(error.body.unwrap().len() <= ProviderError::BODY_LIMIT);
    }
}

#[test]
fn error_that_asks_for_reasoning_names_the_setting_that_sends_it_back() {
    const SETTING: &str = "ChatCompletions::with_reasoning(ReasoningReturn::ContentWithCalls)";
    let asks = [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "Missing `reasoning_content` field in the assistant message at message index 2.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
    ];
    for text in asks {
        let body = format!(r#"{{"error":{{"message":"{text}","type":"invalid_request_error"}}}}"#);
        let error = error(400, &body);
        assert_eq!(error.kind, InvalidRequest);
        assert!(error.message.contains(text) && error.message.contains(SETTING), "{error}");
        let set = ChatCompletions::default().with_reasoning(ReasoningReturn::ContentWithCalls);
        assert!(!set.error(400, &body).message.contains(SETTING));
    }
    let other = error(400, r#"{"error":{"message":"`temperature` must be at most 2"}}"#);
    assert!(!other.message.contains(SETTING), "{other}");
}
