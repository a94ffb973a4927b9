-- Every object of Postrider's schemas as one line of text, so that two catalogues can be compared as two lists.
-- A line is the same after a dump and restore: expressions are in the short form, rights are sorted and written out.
-- Of grants only those to our roles and to PUBLIC count: an application's own login may be granted more, such as
-- publish_outbox.
with ours as (
    select oid, nspname::text as name, nspowner, nspacl
      from pg_catalog.pg_namespace
     where nspowner = 'postrider_owner'::regrole
), tables as (
    select format('%s.%s', ours.name, class.relname) as name, class.*
      from pg_catalog.pg_class as class
      join ours on ours.oid = class.relnamespace
     where class.relkind in ('r', 'p', 'v', 'm', 'S')
), rights (object, part, acl) as (
    select 'schema ' || name, null, coalesce(nspacl, acldefault('n', nspowner))
      from ours
    union all
    select 'table ' || name, null, coalesce(relacl, acldefault(case relkind when 'S' then 's' else 'r' end::"char", relowner))
      from tables
    union all
    select 'table ' || name, attname, attacl
      from pg_catalog.pg_attribute
      join tables on tables.oid = attrelid
     where attacl is not null
       and not attisdropped
    union all
    select format('function %s.%s(%s)', ours.name, proname, pg_get_function_identity_arguments(pg_proc.oid)), null,
           coalesce(proacl, acldefault('f', proowner))
      from pg_catalog.pg_proc
      join ours on ours.oid = pronamespace
)
select line as "line!"
  from (
    select format('schema %s', name) as line
      from ours
    union all
    select format('%s %s owner %s rls %s forced %s settings %s',
                  case relkind when 'S' then 'sequence' when 'v' then 'view' when 'm' then 'view' else 'table' end,
                  name, relowner::regrole, relrowsecurity, relforcerowsecurity,
                  array(select option from unnest(reloptions) as option order by option))
      from tables
    union all
    select format('view %s %s', name, md5(pg_get_viewdef(oid, true)))
      from tables
     where relkind in ('v', 'm')
    union all
    select format('%s%s grants %s to %s', rights.object, '.' || rights.part,
                  string_agg(lower(privilege_type) || case when is_grantable then ' (grantable)' else '' end, ', '
                             order by privilege_type, is_grantable),
                  case when grantee = 0 then 'public' else grantee::regrole::text end)
      from rights
     cross join lateral aclexplode(rights.acl)
     where grantee = 0
        or grantee::regrole::text in ('postrider_owner', 'postrider_app', 'postrider_worker', 'postrider_read', 'postrider_publish')
     group by rights.object, rights.part, grantee
    union all
    select format('column %s.%s %s%s%s%s%s default %s', tables.name, attname, format_type(atttypid, atttypmod),
                  case when attnotnull then ' not null' end,
                  case when attidentity <> '' then format(' identity %s', attidentity) end,
                  case when attgenerated <> '' then format(' generated %s', attgenerated) end,
                  -- Some plans depend on it. The default is -1, and null from Postgres 17 on.
                  case when attstattarget >= 0 then format(' statistics %s', attstattarget) end,
                  pg_get_expr(adbin, adrelid, true))
      from pg_catalog.pg_attribute
      join tables on tables.oid = attrelid and tables.relkind <> 'S'
      left join pg_catalog.pg_attrdef on adrelid = attrelid and adnum = attnum
     where attnum > 0
       and not attisdropped
    union all
    -- Postgres 18 lists NOT NULL as constraints, too; the columns say it already.
    select format('constraint %s.%s %s', tables.name, conname, pg_get_constraintdef(pg_constraint.oid, true))
      from pg_catalog.pg_constraint
      join tables on tables.oid = conrelid
     where contype <> 'n'
    union all
    select format('index %s%s', pg_get_indexdef(indexrelid, 0, true), case when not indisvalid then ' invalid' end)
      from pg_catalog.pg_index
      join tables on tables.oid = indrelid
    union all
    select format('trigger %s.%s enabled %s %s', tables.name, tgname, tgenabled, pg_get_triggerdef(pg_trigger.oid, true))
      from pg_catalog.pg_trigger
      join tables on tables.oid = tgrelid
     where not tgisinternal
    union all
    select format('rule %s.%s %s', tables.name, rulename, pg_get_ruledef(pg_rewrite.oid, true))
      from pg_catalog.pg_rewrite
      join tables on tables.oid = ev_class
     where rulename <> '_RETURN'
    union all
    select format('policy %s.%s %s %s to %s using %s check %s', tables.name, polname, polcmd,
                  case when polpermissive then 'permissive' else 'restrictive' end,
                  array(select role::regrole::text from unnest(polroles) as role order by 1),
                  pg_get_expr(polqual, polrelid, true), pg_get_expr(polwithcheck, polrelid, true))
      from pg_catalog.pg_policy
      join tables on tables.oid = polrelid
    union all
    select format('function %s.%s(%s) returns %s owner %s language %s kind %s definer %s strict %s volatility %s parallel %s '
                  'leakproof %s cost %s rows %s settings %s body %s',
                  ours.name, proname, pg_get_function_arguments(pg_proc.oid), pg_get_function_result(pg_proc.oid),
                  proowner::regrole, lanname, prokind, prosecdef, proisstrict, provolatile, proparallel,
                  proleakproof, procost, prorows,
                  array(select setting from unnest(proconfig) as setting order by setting),
                  md5(coalesce(pg_get_function_sqlbody(pg_proc.oid), prosrc)))
      from pg_catalog.pg_proc
      join ours on ours.oid = pronamespace
      join pg_catalog.pg_language on pg_language.oid = prolang
    ) as objects
 order by line collate "C"
