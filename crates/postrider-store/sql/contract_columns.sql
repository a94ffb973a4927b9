-- Columns and types of all tables and views in these schemas.
select format('%s.%s', namespace.nspname, class.relname) as "table!",
       attribute.attname::text as "name!",
       format_type(attribute.atttypid, attribute.atttypmod) as "kind!"
  from pg_catalog.pg_attribute as attribute
  join pg_catalog.pg_class as class on class.oid = attribute.attrelid
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where namespace.nspname = any ($1)
   and class.relkind in ('r', 'p', 'v', 'm')
   and attribute.attnum > 0
   and not attribute.attisdropped
