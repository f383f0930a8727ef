//! Store methods that call the same method of another store, for stores that wrap one.

/// Implements these methods of `Store` by calls to the store in a field: `forward!(self.0: load, list);`. The macro
/// stands in an implementation with `#[async_trait]`, and its methods have the form that this attribute gives to
/// methods.
#[allow(unused_macros, reason = "shared with other tests")]
macro_rules! forward {
    ($this:ident.$($field:tt).+: $($method:ident),+) => {
        forward!(@each $this ($this.$($field).+) $($method)+);
    };
    (@each $this:ident $store:tt $($method:ident)+) => { $(forward!(@$method $this $store);)+ };
    (@traits $this:ident $store:tt) => {
        fn traits(&$this) -> omni_agent::store::custom::StoreTraits { $store.traits() }
    };
    (@write $($to:tt)+) => { forward!(
        @ $($to)+ write['c 'd](
            , write: &'c omni_agent::store::custom::Write, change: &'d omni_agent::store::custom::Change
        ) -> omni_agent::store::custom::Version
    ); };
    (@load $($to:tt)+) => { forward!(@ $($to)+ load[]() -> omni_agent::store::custom::Stored); };
    (@summary $($to:tt)+) => { forward!(@ $($to)+ summary[]() -> omni_agent::store::Summary); };
    (@delete $($to:tt)+) => {
        forward!(@ $($to)+ delete['c](, lease: Option<&'c omni_agent::store::custom::Lease>) -> ());
    };
    (@turn $($to:tt)+) => {
        forward!(@ $($to)+ turn[]() -> Option<omni_agent::store::custom::StoredTurn>);
    };
    (@acquire $($to:tt)+) => {
        forward!(@ $($to)+ acquire['c](, owner: &'c omni_agent::store::Owner) -> omni_agent::store::custom::Lease);
    };
    (@release $($to:tt)+) => { forward!(
        @ $($to)+ release['c](
            , lease: &'c omni_agent::store::custom::Lease, mark: Option<omni_agent::subscription::EventId>
        ) -> ()
    ); };
    (@list $this:ident $store:tt) => {
        fn list<'a, 'b, 'f>(
            &'a $this,
            listing: &'b omni_agent::store::Listing,
        ) -> futures_util::future::BoxFuture<'f, Result<Vec<omni_agent::store::Summary>, omni_agent::store::StoreError>>
        where
            Self: 'f,
            'a: 'f,
            'b: 'f,
        {
            $store.list(listing)
        }
    };
    (@ $this:ident $store:tt $method:ident[$($life:lifetime)*]($(, $argument:ident: $type:ty)*) -> $output:ty) => {
        fn $method<'a, 'b, $($life,)* 'f>(
            &'a $this,
            id: &'b omni_agent::store::ConversationId
            $(, $argument: $type)*
        ) -> futures_util::future::BoxFuture<'f, Result<$output, omni_agent::store::StoreError>>
        where
            Self: 'f,
            'a: 'f,
            'b: 'f,
            $($life: 'f),*
        {
            $store.$method(id $(, $argument)*)
        }
    };
}
