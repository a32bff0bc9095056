// SPDX-License-Identifier: Apache-2.0

// Package skydns answers from records in the format of SkyDNS.
//
// A record is a JSON object under a path with the labels of its name in reverse order:
//
//	/skydns/local/skydns/web/1  {"host": "10.0.0.1", "port": 8080}  A of 1.web.skydns.local, and SRV
//	/skydns/local/skydns/www    {"host": "web.example.com"}         CNAME
//	/skydns/local/skydns/note   {"text": "hello"}                   TXT
//	/skydns/local/skydns/mx/1   {"host": "10.0.0.2", "mail": true}  MX
//
// A name is answered from the records below it, or if there are none from the record at its own path; PTR only from its own
// path. A record may have both a host and a text. A label `*` or `any` in a query matches every label. The address of a zone
// is at apex.dns, its name servers are at ns.dns. If the record with the shortest path has a group, records of other
// groups are left out.
//
// A query holds a lock while it reads records, and none while it builds the answer. An answer is built for the size that its client
// accepts: its cost depends on the records read, of which there are at most 1,024, and on the bytes sent. Recent answers that are
// whole are kept until a record changes.
package skydns
