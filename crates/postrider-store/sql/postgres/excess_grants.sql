-- Rights to change kernel tables, or single columns of them, that somebody other than their owner has.
select format('%s may %s %s', coalesce(nullif(granted.grantee, 0)::regrole::text, 'PUBLIC'),
              lower(granted.privilege_type), rights.object) as "grant!"
  from pg_catalog.pg_class as tables
  join pg_catalog.pg_namespace as schemas on schemas.oid = tables.relnamespace
 cross join lateral (
           select tables.oid::regclass::text as object, tables.relacl as acl
            union all
           select format('%s (%s)', tables.oid::regclass, attname), attacl
             from pg_catalog.pg_attribute
            where attrelid = tables.oid
              and not attisdropped) as rights
 cross join aclexplode(rights.acl) as granted
 where schemas.nspowner = 'postrider_owner'::regrole
   and granted.grantee <> tables.relowner
   and granted.privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER', 'MAINTAIN')
   -- Imports COPY into it, and nobody can read it.
   and (tables.oid::regclass::text, granted.privilege_type, granted.grantee::regrole::text)
       <> ('execution.lead_intake', 'INSERT', 'postrider_app')
 order by 1
