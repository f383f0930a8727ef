//! Setters of public fields, for structs that may get more fields. Code outside the crate can't create such a struct
//! with a literal.

/// Defines setters that take `self` and return it. `some T` sets an optional field, and `into T` accepts any value that
/// converts into the field's type.
macro_rules! setters {
    (@ $type:ident $with:ident $field:ident some $value:ty) => {
        impl $type {
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            pub fn $with(mut self, $field: impl Into<$value>) -> Self {
                self.$field = Some($field.into());
                self
            }
        }
    };
    (@ $type:ident $with:ident $field:ident into $value:ty) => {
        impl $type {
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            pub fn $with(mut self, $field: impl Into<$value>) -> Self {
                self.$field = $field.into();
                self
            }
        }
    };
    (@ $type:ident $with:ident $field:ident $value:ty) => {
        impl $type {
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            pub fn $with(mut self, $field: $value) -> Self {
                self.$field = $field;
                self
            }
        }
    };
    ($type:ident: $($with:ident($field:ident: $($value:tt)+)),+ $(,)?) => {
        $($crate::setters::setters!(@ $type $with $field $($value)+);)+
    };
}

pub(crate) use setters;
