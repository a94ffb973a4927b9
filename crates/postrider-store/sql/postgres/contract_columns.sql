-- Columns and types of all tables, views and other relations in these schemas. A relation without columns is one row without a name.
select format('%s.%s', namespace.nspname, class.relname) as "table!",
       attribute.attname::text as "name?",
       format_type(attribute.atttypid, attribute.atttypmod) as "kind?"
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
  left join pg_catalog.pg_attribute as attribute
    on attribute.attrelid = class.oid and attribute.attnum > 0 and not attribute.attisdropped
 where namespace.nspname = any ($1)
   and class.relkind not in ('i', 'I', 'S', 't')
