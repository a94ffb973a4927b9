-- Rights to the key that signs tenants, beside those of its owner and of the workers.
select format('%s may %s %s', coalesce(nullif(granted.grantee, 0)::regrole::text, 'PUBLIC'),
              lower(granted.privilege_type), rights.object) as "grant!"
  from (select class.oid::regclass::text as object, class.relowner as owner, class.relacl as acl, false as is_for_workers
          from pg_catalog.pg_class as class
         where class.oid = 'tenancy.context_keys'::regclass
         union all
        select format('%s (%s)', attribute.attrelid::regclass, attribute.attname), class.relowner, attribute.attacl, false
          from pg_catalog.pg_attribute as attribute
               join pg_catalog.pg_class as class on class.oid = attribute.attrelid
         where attribute.attrelid = 'tenancy.context_keys'::regclass
         union all
        select routine.oid::regprocedure::text, routine.proowner, coalesce(routine.proacl, acldefault('f', routine.proowner)),
               routine.proname = 'context_key'
          from pg_catalog.pg_proc as routine
         where routine.pronamespace = 'tenancy'::regnamespace
           and routine.proname in ('context_key', 'add_context_key', 'rotate_context_key')) as rights
 cross join aclexplode(rights.acl) as granted
 where granted.grantee <> rights.owner
   and not (rights.is_for_workers and granted.grantee = 'postrider_worker'::regrole)
 order by 1
