-- Tables that hold tenants' rows and do not keep them apart.
select format('%s: %s', tables.oid::regclass,
              case
                  when not tables.relrowsecurity then 'row-level security is off'
                  when not tables.relforcerowsecurity then 'row-level security is not forced on its owner'
                  else 'it has no policy that asks for the tenant'
              end) as "problem!"
  from pg_catalog.pg_class as tables
  join pg_catalog.pg_namespace as schemas on schemas.oid = tables.relnamespace
 where schemas.nspowner = 'postrider_owner'::regrole
   and tables.relkind in ('r', 'p')
   and (tables.oid = 'tenancy.tenants'::regclass
        or exists (select
                     from pg_catalog.pg_attribute
                    where attrelid = tables.oid
                      and attname = 'tenant_id'
                      and not attisdropped))
   and not (tables.relrowsecurity
            and tables.relforcerowsecurity
            and exists (select
                          from pg_catalog.pg_policy
                         where polrelid = tables.oid
                           and pg_get_expr(polqual, polrelid) like '%tenancy.current_tenant_id()%')
            -- Policies add up: one that lets everything through undoes the others, except for the owner.
            and not exists (select
                              from pg_catalog.pg_policy
                             where polrelid = tables.oid
                               and polroles <> array['postrider_owner'::regrole::oid]
                               and (pg_get_expr(polqual, polrelid) not like '%tenancy.current_tenant_id()%'
                                    or pg_get_expr(polwithcheck, polrelid) not like '%tenancy.current_tenant_id()%')))
 order by 1
