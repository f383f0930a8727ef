//! `Debug` for types that show only some of their fields.

/// Implements `Debug` for a type, showing only the given values: `Type(self) { name: value, .. }`. With `..` at the end,
/// the output says that the type has more fields. Without values, the form is `Type { .. }`, or `Type {}` for the name
/// alone.
macro_rules! impl_debug {
    (@ $(#[$meta:meta])* $type:ident $(<$life:lifetime>)? $this:ident [$($name:ident: $value:expr),*] $finish:ident) => {
        $(#[$meta])*
        impl ::std::fmt::Debug for $type $(<$life>)? {
            fn fmt(&$this, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($type))$(.field(stringify!($name), &$value))*.$finish()
            }
        }
    };
    ($(#[$meta:meta])* $type:ident $(<$life:lifetime>)? ($this:ident) { $($name:ident: $value:expr,)* .. }) => {
        $crate::debug::impl_debug!(@ $(#[$meta])* $type $(<$life>)? $this [$($name: $value),*] finish_non_exhaustive);
    };
    ($(#[$meta:meta])* $type:ident $(<$life:lifetime>)? ($this:ident) { $($name:ident: $value:expr),* }) => {
        $crate::debug::impl_debug!(@ $(#[$meta])* $type $(<$life>)? $this [$($name: $value),*] finish);
    };
    ($(#[$meta:meta])* $type:ident $(<$life:lifetime>)? { $($rest:tt)* }) => {
        $crate::debug::impl_debug!($(#[$meta])* $type $(<$life>)? (self) { $($rest)* });
    };
}

pub(crate) use impl_debug;
