-- Every object of Postrider's schemas as one line of text, so that two catalogues can be compared as two lists.
-- Of grants only those to our roles and to PUBLIC count: an application's own login may be granted more, such as
-- publish_outbox.
with ours as (
    select oid, nspname::text as name
      from pg_catalog.pg_namespace
     where nspowner = 'postrider_owner'::regrole
), tables as (
    select format('%s.%s', ours.name, class.relname) as name, class.*
      from pg_catalog.pg_class as class
      join ours on ours.oid = class.relnamespace
     where class.relkind in ('r', 'p', 'v', 'm')
)
select line as "line!"
  from (
    select format('table %s owner %s rls %s forced %s grants %s',
                  name, relowner::regrole, relrowsecurity, relforcerowsecurity,
                  array(select entry from unnest(relacl) as entry
                        where split_part(entry::text, '=', 1) in ('', 'postrider_owner', 'postrider_app', 'postrider_worker', 'postrider_read',
                                                                    'postrider_publish'))) as line
      from tables
    union all
    -- As whom a view asks.
    select format('view %s settings %s', name, reloptions)
      from tables
     where relkind in ('v', 'm')
    union all
    select format('column %s.%s %s%s default %s grants %s', tables.name, attname, format_type(atttypid, atttypmod),
                  case when attnotnull then ' not null' end, pg_get_expr(adbin, adrelid), attacl)
      from pg_catalog.pg_attribute
      join tables on tables.oid = attrelid
      left join pg_catalog.pg_attrdef on adrelid = attrelid and adnum = attnum
     where attnum > 0
       and not attisdropped
    union all
    -- Postgres 18 lists NOT NULL as constraints, too; the columns say it already.
    select format('constraint %s.%s %s', tables.name, conname, pg_get_constraintdef(pg_constraint.oid))
      from pg_catalog.pg_constraint
      join tables on tables.oid = conrelid
     where contype <> 'n'
    union all
    select format('index %s', pg_get_indexdef(indexrelid))
      from pg_catalog.pg_index
      join tables on tables.oid = indrelid
    union all
    select format('trigger %s.%s enabled %s %s', tables.name, tgname, tgenabled, pg_get_triggerdef(pg_trigger.oid))
      from pg_catalog.pg_trigger
      join tables on tables.oid = tgrelid
     where not tgisinternal
    union all
    select format('policy %s.%s %s to %s using %s check %s', tables.name, polname, polcmd,
                  array(select role::regrole::text from unnest(polroles) as role order by 1),
                  pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))
      from pg_catalog.pg_policy
      join tables on tables.oid = polrelid
    union all
    select format('function %s.%s(%s) returns %s owner %s definer %s settings %s grants %s body %s',
                  ours.name, proname, pg_get_function_arguments(pg_proc.oid), pg_get_function_result(pg_proc.oid),
                  proowner::regrole, prosecdef, proconfig,
                  array(select entry from unnest(proacl) as entry
                        where split_part(entry::text, '=', 1) in ('', 'postrider_owner', 'postrider_app', 'postrider_worker', 'postrider_read',
                                                                    'postrider_publish')),
                  md5(prosrc))
      from pg_catalog.pg_proc
      join ours on ours.oid = pronamespace
    ) as objects
 order by line collate "C"
