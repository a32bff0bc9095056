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
// A name has the records below it, and without any the record of its own path; PTR is of its own path only. A record with a host
// and a text is both.
// A label `*` or `any` in a query stands for every label. The address of a zone is at apex.dns, its name servers are at
// ns.dns. Records of one name whose shortest paths have a group are answered with that group only.
//
// A query holds a lock while it reads records, and none while it builds the answer. An answer is built for the size that its client
// accepts: its cost depends on the records read, of which there are at most 1,024, and on the bytes sent. Recent answers that are
// whole are kept until a record changes.
package skydns
