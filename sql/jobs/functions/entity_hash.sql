-- The entity hash of a lock key: twelve hex digits that equal the result of this JavaScript for the same JSON text.
--
--     const canonical = JSON.stringify(Object.keys(entities).sort().map(k => [k, entities[k]]));
--     createHash('sha256').update(canonical).digest('hex').slice(0, 12);
--
-- The functions take `json`, because `jsonb` loses the order of keys and rejects some strings. Literals with a
-- backslash are written as E'…' where standard_conforming_strings of the session could change their meaning.

create or replace function jobs.json_shielded(p_value json)
returns json
language sql
immutable
strict
parallel safe
return replace(replace(replace(p_value::text, '\\', '\u005c'), '\"', '\u0022'), '\', '\\')::json;
comment on function jobs.json_shielded(json) is
    'Escapes every escape in the strings of a JSON value once more. Postgres JSON functions then undo only the '
    'added escapes, so escapes that text cannot hold (\u0000, single surrogates) survive.';
revoke all on function jobs.json_shielded(json) from public;
grant execute on function jobs.json_shielded(json) to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.json_string(p_escaped text)
returns text
language plpgsql
immutable
strict
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if strpos(p_escaped, E'\\') = 0 then
        return '"' || p_escaped || '"';
    end if;
    -- Each piece but the first begins with an escape. No escape contains a backslash, because the value is shielded.
    return (
        select '"' || string_agg(
                   case
                       when piece.place = 1 then piece.text
                       when piece.code is null then case when piece.text like '/%' then '' else E'\\' end || piece.text
                       -- High surrogates are 55296 to 56319, low ones 56320 to 57343. The low one writes the
                       -- character.
                       when piece.is_high and piece.next_is_low then ''
                       when piece.code between 56320 and 57343 and piece.high is not null
                           then chr(65536 + (piece.high - 55296) * 1024 + piece.code - 56320) || substr(piece.text, 6)
                       when piece.code = 34 then E'\\"' || substr(piece.text, 6)
                       when piece.code = 92 then E'\\\\' || substr(piece.text, 6)
                       when piece.code in (8, 9, 10, 12, 13)
                           then E'\\' || substr('btn-fr', piece.code - 7, 1) || substr(piece.text, 6)
                       when piece.code < 32 or piece.code between 55296 and 57343
                           then E'\\' || lower(left(piece.text, 5)) || substr(piece.text, 6)
                       else chr(piece.code) || substr(piece.text, 6)
                   end, '' order by piece.place) || '"'
          from (select coded.*,
                       lag(case when coded.is_high then coded.code end) over places as high,
                       lead(coded.code between 56320 and 57343) over places as next_is_low
                  from (select split.*,
                               split.code between 55296 and 56319 and length(split.text) = 5 as is_high
                          from (select given.text,
                                       given.place,
                                       case when given.place > 1 and given.text like 'u%'
                                            then ('x' || substr(given.text, 2, 4))::bit(16)::integer
                                       end as code
                                  from unnest(string_to_array(p_escaped, E'\\')) with ordinality as given (text, place)) as split) as coded
                window places as (order by coded.place)) as piece
    );
end
$$;
comment on function jobs.json_string(text) is
    'Writes a string as JSON.stringify does. The argument is the text between the quotes of a JSON string, with its '
    'escapes.';
revoke all on function jobs.json_string(text) from public;
grant execute on function jobs.json_string(text) to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.json_digits(p_number text, out digits text, out point bigint)
language plpgsql
immutable
strict
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_decimal text := split_part(lower(p_number), 'e', 1);
    v_exponent text := split_part(lower(p_number), 'e', 2);
begin
    digits := ltrim(replace(v_decimal, '.', ''), '0');
    -- No number has enough digits to compensate for an exponent of more than twelve digits.
    if length(ltrim(v_exponent, '+-0')) > 12 then
        v_exponent := left(v_exponent, 1) || '1000000000000';
    end if;
    point := length(digits) - length(split_part(v_decimal, '.', 2)) + coalesce(nullif(v_exponent, ''), '0')::bigint;
    digits := rtrim(digits, '0');
end
$$;
comment on function jobs.json_digits(text) is
    'Splits a positive decimal number into its digits, without zeros at either end, and its decimal point: the '
    'value is 0.digits × 10^point.';
revoke all on function jobs.json_digits(text) from public;
grant execute on function jobs.json_digits(text) to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.json_number(p_number text)
returns text
language plpgsql
immutable
strict
parallel safe
set search_path = pg_catalog, pg_temp
set extra_float_digits = 1
as $$
declare
    v_is_negative boolean := p_number like '-%';
    v_digits text;
    v_point bigint;
    v_double double precision;
    v_shorter bigint;
begin
    -- Integers of at most 15 characters stay as they are, except that zero has no sign.
    if length(p_number) < 16 and ltrim(p_number, '-0123456789') = '' then
        return case p_number when '-0' then '0' else p_number end;
    end if;
    select * into v_digits, v_point from jobs.json_digits(ltrim(p_number, '-'));
    if v_digits = '' or v_point < -323 then
        return '0';
    elsif v_point > 309 then
        return 'null';
    end if;
    -- No double, and no midpoint between two, has that many digits. Of the remaining digits only their presence
    -- matters.
    if length(v_digits) > 800 then
        v_digits := left(v_digits, 800) || '1';
    end if;
    -- A number that is too small becomes 0. A number that is too large becomes Infinity, which JSON.stringify writes
    -- as null. The cast to double precision would reject both.
    if v_point = -323 and (v_digits || 'e' || v_point - length(v_digits))::numeric * (2::numeric ^ 1075) <= 1 then
        return '0';
    elsif v_point = 309 and (v_digits || 'e' || v_point - length(v_digits))::numeric >= 2::numeric ^ 1024 - 2::numeric ^ 970 then
        return 'null';
    end if;
    v_double := (v_digits || 'e' || v_point - length(v_digits))::double precision;
    select * into v_digits, v_point from jobs.json_digits(v_double::text);
    -- Postgres never writes the midpoint between two doubles, although it reads it as this double. JavaScript does
    -- where that is shorter (1e23). Midpoints far from 1 have more digits than that.
    if v_point between -30 and 60 and length(v_digits) > 1 then
        foreach v_shorter in array array[left(v_digits, -1)::bigint, left(v_digits, -1)::bigint + 1]
        loop
            if (v_shorter || 'e' || v_point - length(v_digits) + 1)::double precision = v_double then
                select * into v_digits, v_point from jobs.json_digits(v_shorter || 'e' || v_point - length(v_digits) + 1);
                exit;
            end if;
        end loop;
    end if;
    return case when v_is_negative then '-' else '' end
        || case
               when v_point between length(v_digits) and 21 then rpad(v_digits, v_point::integer, '0')
               when v_point between 1 and 21 then left(v_digits, v_point::integer) || '.' || substr(v_digits, v_point::integer + 1)
               when v_point between -5 and 0 then '0.' || repeat('0', -v_point::integer) || v_digits
               else left(v_digits, 1)
                 || case when length(v_digits) > 1 then '.' || substr(v_digits, 2) else '' end
                 || 'e' || case when v_point > 0 then '+' else '-' end || abs(v_point - 1)
           end;
end
$$;
comment on function jobs.json_number(text) is
    'Writes a number as JSON.stringify does: the nearest double, with the fewest digits that identify it.';
revoke all on function jobs.json_number(text) from public;
grant execute on function jobs.json_number(text) to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.json_members(p_shielded json)
returns table (key text, value json, place bigint)
language sql
immutable
parallel safe
begin atomic
    select jobs.json_string(member.key), (array_agg(member.value order by member.place desc))[1], min(member.place)
      from json_each(p_shielded) with ordinality as member (key, value, place)
     group by 1;
end;
comment on function jobs.json_members(json) is
    'Returns the members of a shielded object as JavaScript keeps them: a repeated key keeps its first place and '
    'its last value.';
revoke all on function jobs.json_members(json) from public;
grant execute on function jobs.json_members(json) to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.json_text(p_shielded json, p_depth integer)
returns text
language plpgsql
immutable
strict
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type text := json_typeof(p_shielded);
begin
    if v_type = 'string' then
        return jobs.json_string(p_shielded #>> '{}');
    elsif v_type = 'number' then
        return jobs.json_number(p_shielded #>> '{}');
    elsif v_type not in ('object', 'array') then
        return btrim(p_shielded::text, E' \t\n\r');
    elsif p_depth > 64 then
        raise exception 'the value is nested deeper than 64 levels; name it by fewer' using errcode = 'invalid_parameter_value';
    elsif v_type = 'array' then
        return (
            select '[' || coalesce(string_agg(jobs.json_text(element.value, p_depth + 1), ',' order by element.place), '') || ']'
              from json_array_elements(p_shielded) with ordinality as element (value, place)
        );
    end if;
    -- Keys that are array indexes come first, in numeric order.
    return (
        select '{' || coalesce(string_agg(member.key || ':' || jobs.json_text(member.value, p_depth + 1), ','
                                          order by case when member.number < 4294967295 then member.number end, member.place), '') || '}'
          from (select found.*,
                       case when found.key ~ '^"(0|[1-9][0-9]{0,9})"$' then btrim(found.key, '"')::bigint end as number
                  from jobs.json_members(p_shielded) as found) as member
    );
end
$$;
comment on function jobs.json_text(json, integer) is
    'Writes a shielded value as JSON.stringify does. p_depth is the depth of the value; the outermost value has '
    'depth 1.';
revoke all on function jobs.json_text(json, integer) from public;
grant execute on function jobs.json_text(json, integer) to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.json_code_units(p_string text)
returns text
language sql
immutable
strict
parallel safe
begin atomic
    select coalesce(string_agg(
               case
                   when length(unit.match[1]) = 6 then right(unit.match[1], 4)
                   when length(unit.match[1]) = 2
                       -- chr(), because the dump shows a control character itself, and tools convert line ends.
                       then lpad(to_hex(ascii(translate(right(unit.match[1], 1), 'btnfr',
                                                        chr(8) || chr(9) || chr(10) || chr(12) || chr(13)))), 4, '0')
                   when ascii(unit.match[1]) < 65536 then lpad(to_hex(ascii(unit.match[1])), 4, '0')
                   else to_hex(55296 + (ascii(unit.match[1]) - 65536) / 1024)
                     || to_hex(56320 + ascii(unit.match[1]) % 1024)
               end, '' order by unit.place), '')
      from regexp_matches(substr(p_string, 2, length(p_string) - 2), E'\\\\u....|\\\\.|.', 'g')
           with ordinality as unit (match, place);
end;
comment on function jobs.json_code_units(text) is
    'Returns the UTF-16 code units, in hex, of a string that jobs.json_string wrote. JavaScript sorts strings by '
    'them.';
revoke all on function jobs.json_code_units(text) from public;
grant execute on function jobs.json_code_units(text) to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.entity_hash(p_entities json)
returns text
language plpgsql
immutable
strict
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if json_typeof(p_entities) <> 'object' then
        raise exception 'the entities must be a JSON object, such as {"rule_id": "r123"}, and not of type %', json_typeof(p_entities)
            using errcode = 'invalid_parameter_value';
    end if;
    return (
        select left(encode(sha256(convert_to('[' || coalesce(string_agg(
                   '[' || member.key || ',' || jobs.json_text(member.value, 2) || ']', ','
                   order by jobs.json_code_units(member.key) collate "C"), '') || ']', 'UTF8')), 'hex'), 12)
          from jobs.json_members(jobs.json_shielded(p_entities)) as member
    );
end
$$;
comment on function jobs.entity_hash(json) is
    'Returns the entity hash of a JSON object of at most 64 levels. The lock key of a run about these entities '
    'contains it.';
revoke all on function jobs.entity_hash(json) from public;
grant execute on function jobs.entity_hash(json) to postrider_app, postrider_worker, postrider_read;
