//! Setters of public fields, for structs that may get more fields. Code outside the crate can't create such a struct
//! with a literal.

/// Defines setters that take `self` and return it. `some T` sets an optional field, and `into T` accepts any value that
/// converts into the field's type.
macro_rules! setters {
    (@ [$($owner:tt)+] $with:ident $field:ident some $value:ty) => {
        $($owner)+ {
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            pub fn $with(mut self, $field: impl Into<$value>) -> Self {
                self.$field = Some($field.into());
                self
            }
        }
    };
    (@ [$($owner:tt)+] $with:ident $field:ident into $value:ty) => {
        $($owner)+ {
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            pub fn $with(mut self, $field: impl Into<$value>) -> Self {
                self.$field = $field.into();
                self
            }
        }
    };
    (@ [$($owner:tt)+] $with:ident $field:ident $value:ty) => {
        $($owner)+ {
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            pub fn $with(mut self, $field: $value) -> Self {
                self.$field = $field;
                self
            }
        }
    };
    ($type:ident: $($with:ident($field:ident: $($value:tt)+)),+ $(,)?) => {
        $($crate::setters::setters!(@ [impl $type] $with $field $($value)+);)+
    };
    ($type:ident<$life:lifetime>: $($with:ident($field:ident: $($value:tt)+)),+ $(,)?) => {
        $($crate::setters::setters!(@ [impl<$life> $type<$life>] $with $field $($value)+);)+
    };
}

pub(crate) use setters;
