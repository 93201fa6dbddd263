-- A document whose row was lost with a tail of Postgres' own log is written again from its entry (decision 0004).
-- What the entry does not carry is gone: the note. A repeat of the document is therefore not judged by its note.

-- +goose Up
alter table stock_document add column rebuilt boolean not null default false;

-- +goose Down
alter table stock_document drop column rebuilt;
