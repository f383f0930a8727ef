//! Setters of builders, and of public fields of structs that may get more fields. Code outside the crate can't create
//! such a struct with a literal.

/// Defines setters that take `self` and return it.
///
/// Inside an `impl` block, each setter has its own documentation and body. Outside, `setters!(Type: with_field(field:
/// T))` documents a setter of a public field by its name. There, `some T` sets an optional field, and `into T` accepts
/// any value that converts into the field's type.
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
    ($($(#[$meta:meta])* $vis:vis fn $with:ident($this:ident $(, $field:ident: $value:ty)* $(,)?) $set:block)+) => {$(
        $(#[$meta])*
        $vis fn $with(mut $this $(, $field: $value)*) -> Self {
            $set
            $this
        }
    )+};
    ($type:ident: $($with:ident($field:ident: $($value:tt)+)),+ $(,)?) => {
        $($crate::setters::setters!(@ [impl $type] $with $field $($value)+);)+
    };
    ($type:ident<$life:lifetime>: $($with:ident($field:ident: $($value:tt)+)),+ $(,)?) => {
        $($crate::setters::setters!(@ [impl<$life> $type<$life>] $with $field $($value)+);)+
    };
}

pub(crate) use setters;
