//! Alibaba. Sources: <https://www.alibabacloud.com/help/en/model-studio/compatibility-of-openai-with-dashscope>,
//! <https://www.alibabacloud.com/help/en/model-studio/deep-thinking>,
//! <https://www.alibabacloud.com/help/en/model-studio/qwen-structured-output>,
//! <https://docs.qwencloud.com/developer-guides/text-generation/thinking>

use super::Endpoint;
use crate::provider::dialect::{ChatCompletions, Files, OutputSupport};

/// A region of Alibaba Cloud's Model Studio. Keys and models differ between regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlibabaRegion {
    /// Singapore.
    #[default]
    International,
    /// Virginia.
    UnitedStates,
    /// Beijing.
    China,
    /// Hong Kong.
    HongKong,
}

impl AlibabaRegion {
    const fn base_url(self) -> &'static str {
        match self {
            Self::International => "https://dashscope-intl.aliyuncs.com/compatible-mode",
            Self::UnitedStates => "https://dashscope-us.aliyuncs.com/compatible-mode",
            Self::China => "https://dashscope.aliyuncs.com/compatible-mode",
            Self::HongKong => "https://cn-hongkong.dashscope.aliyuncs.com/compatible-mode",
        }
    }
}

impl Endpoint {
    /// Alibaba's international region, with the key from `DASHSCOPE_API_KEY`.
    ///
    /// Models that can use the reasoning of earlier turns are asked to do so (`preserve_thinking`), and the reasoning
    /// is sent back to them.
    ///
    /// Only some models accept a `json_schema`. Therefore, an output schema is requested as a JSON object, and the
    /// schema is added to the system prompt. The service can't combine this with thinking. If the model thinks, the
    /// schema is sent as the input schema of a tool instead, but the use of this tool can't be forced. For models
    /// without tools, the schema is only in the system prompt.
    pub fn alibaba() -> Self {
        Self::alibaba_in(AlibabaRegion::default())
    }

    /// Alibaba in one of its regions, with the key from `DASHSCOPE_API_KEY`.
    pub fn alibaba_in(region: AlibabaRegion) -> Self {
        let chat = ChatCompletions::default()
            .with_output(OutputSupport::Object)
            .with_files(Files::Images)
            .without_metadata()
            .of_service("alibaba");
        Self::custom("alibaba", region.base_url(), chat).with_key_variable("DASHSCOPE_API_KEY")
    }
}
