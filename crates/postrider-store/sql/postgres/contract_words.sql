-- Words that a check of the form `column in ('a', 'b')` allows, in these schemas.
select format('%s.%s', namespace.nspname, class.relname) as "table!",
       attribute.attname::text as "column!",
       array(select word[1] from regexp_matches(definition.text, '''([^'']*)''::text', 'g') as word) as "words!"
  from pg_catalog.pg_constraint as con
  join pg_catalog.pg_class as class on class.oid = con.conrelid
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
  join pg_catalog.pg_attribute as attribute on attribute.attrelid = class.oid and attribute.attnum = con.conkey[1]
 cross join lateral pg_get_constraintdef(con.oid, true) as definition (text)
 where namespace.nspname = any ($1)
   and con.contype = 'c'
   and con.convalidated
   and cardinality(con.conkey) = 1
   and definition.text ~ format('^CHECK \(%s = ANY \(ARRAY\[[^]]*\]\)\)$', attribute.attname)
