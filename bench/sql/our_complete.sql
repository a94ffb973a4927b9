select events.complete_outbox_events(
           $1, array_fill(tenancy.system_tenant_id(), array[cardinality($2::bigint[])]), $2::bigint[],
           array_fill(null::text, array[cardinality($2::bigint[])]))
