// SPDX-License-Identifier: Apache-2.0

// Package zone answers the names of a Kubernetes cluster from slim records of its objects.
//
// A [Store] holds the objects, packed; pkg/watch fills it. A [Zone] answers from
// a store by a configuration, as bytes, without a lock or an allocation. It follows
// the Kubernetes DNS specification 1.1.0 and, where that is silent, the kubernetes
// plugin of CoreDNS 1.14.7.
//
// # What is answered
//
// Below the cluster domain:
//
//	<domain>                                SOA; NS ns.dns.<domain>, with its addresses
//	ns.dns                                  A, AAAA: the nameservers of the configuration
//	dns-version                             TXT "1.1.0"
//	dns, svc, pod                           nothing, and they exist
//	<ns>.svc, <ns>.pod                      nothing; they exist if the namespace is declared or a service is in it
//	<svc>.<ns>.svc            ClusterIP     A, AAAA: its addresses; SRV: its ports
//	                          headless      A, AAAA: its published endpoints; SRV: their ports; without such an endpoint it does not exist
//	                          ExternalName  CNAME, for every type
//	_<port>._<proto>.<svc>                  SRV: the ports with that name; A, AAAA: as at the service. The underscores may be missing
//	_<proto>.<svc>                          nothing; it exists if there is a named port of the protocol
//	<endpoint>.<svc>                        A, AAAA, SRV of the endpoint: its hostname, else by option its pod's name, else its address
//	<zone>.pin._zone.<svc>    headless      as at the service, with the endpoints of the topology zone only; nothing if there are none
//	<zone>.prefer._zone.<svc> headless      the same, but all endpoints if there are none
//	_zone, pin._zone, prefer._zone          nothing, and they exist below every headless service
//	<address>.<ns>.pod                      A or AAAA: insecure if the namespace exists, verified if a pod in it has the address
//
// An address in a label has dashes for dots and colons. An endpoint's ends in 0
// where it would end in a dash; a pod's may be spelled in any way.
//
// A published endpoint is one that is ready, or of a service that publishes all.
// One address is given once, however many slices have it. Sets rotate with every
// answer; endpoints of the node's topology zone come first. SRV records share a
// weight of 100 among the endpoints and ports that the name stands for, and are
// at least 1; the targets' addresses are in the additional section.
//
// Reverse names of whole addresses are PTR: to the service that has the address,
// else to every published endpoint that has it and whose service is held. They
// are looked up in all of in-addr.arpa and ip6.arpa. One that is not found is
// denied if it is in a cluster range and not the zone's otherwise. So is a name
// of less than an address: not the zone's.
//
// A chain of aliases within the zone is followed, eight CNAME records at most.
// One that leads out of the zone is [Alias]. One that is longer, or has no end,
// is a name without data: giving its beginning out would only have a client walk
// it on. An ExternalName that is an IP address or no name cannot be a CNAME
// record, and its service does not exist here.
//
// Objects with names that no label can hold are left out; a hostname, port name
// or topology zone that no label can hold counts as none. A name of more than 255
// octets is no target.
//
// An answer is built for the size that its client takes, and costs what is sent and not
// what is held. Of a larger set a part is given with TC, with each turn another one. So it
// is where an answer spends its budget of steps on entries that are not given: not
// ready, there already, or of another topology zone. An address has 32 PTR records at
// most, with each turn others. A service or slice has its first 4,096 ports, a slice 127
// topology zones.
//
// Names apart, which the configuration lists, and all below them are not the
// zone's, in a question or as the target of an alias.
//
// # Who may say no
//
// A view is one kind of object as the store has it. It is unsynced until its
// first list is complete, stale when nothing has proven it right for StaleAfter,
// and blind if nobody ever fills it. One that was restored from a dump was complete
// once, in another process: until its first list is complete here it is as stale,
// however young, and not as unsynced.
//
//	statement                       needs                                 if stale         if unsynced
//	record of a service             that record                           EDE 3            given
//	record of an endpoint or pod    that record                           EDE 3            given
//	set of endpoints                all slices                            EDE 3            ask elsewhere, else SERVFAIL, EDE 14
//	no such type at a service       that record                           given            given
//	no such name                    services; slices, if below one or     ask elsewhere,   ask elsewhere, else SERVFAIL, EDE 14
//	                                headless; namespaces or pods, if      else NXDOMAIN,
//	                                it is a namespace or a pod            EDE 19
//	no such type at endpoints       services and slices                   as above, EDE 3  as above
//	no such name, by its shape      nothing                               given            given
//
// If elsewhere has no answer, [Zone.LastWord] says what a stale view would without
// elsewhere.
//
// By its shape means that no objects could make the name: three or more labels
// left of a service's that are not zonal, two of which the second is no protocol,
// an impossible address. A search path that is walked with a name of the world
// mostly ends there.
//
// A blind view says no if there is nobody else to ask. That is so for endpoints
// without slices, for those of other than headless services where only these
// services' slices are fetched, and for names outside of svc and pod, which a
// central resolver may have.
//
// # Differences from CoreDNS
//
//   - dns, dns-version by other types than TXT, _<proto>.<svc>, _zone.<svc> and the
//     directives below it: they have names below them or data, so they exist
//     (RFC 8020). CoreDNS says NXDOMAIN.
//   - TXT at names that exist without data, such as svc: NODATA. CoreDNS says NXDOMAIN
//     for this one type.
//   - Other types than PTR at a reverse name that exists: NODATA. CoreDNS says NXDOMAIN.
//   - SOA at names that do not exist: NXDOMAIN. CoreDNS says NODATA for this one type.
//   - in-addr.arpa, ip6.arpa and names in them of less than an address are not the
//     zone's: a node has no say over them. CoreDNS is given the trees whole.
//   - The SOA record for reverse names has the owner in-addr.arpa or ip6.arpa as
//     CoreDNS has it, but names ns.dns and hostmaster of the cluster domain, which exist.
//   - An alias is one for every type (RFC 1034 section 3.6.2). CoreDNS has no data
//     for TXT, SRV, MX and types it does not know.
//   - An alias for a name of the zone without data, or that does not exist, is given with
//     that name's rcode (RFC 6604). CoreDNS leaves the alias out and says NODATA.
//     Chains end after eight aliases, in CoreDNS after eleven.
//   - Labels left of a pod's name are denied. CoreDNS ignores them. A pod's name has
//     no SRV record; that of CoreDNS has port 0.
//   - Verified pods: all addresses of a pod and all spellings of them. CoreDNS
//     knows the first address in one spelling.
//   - A bare underscore is no wildcard for a port or protocol.
//   - An endpoint whose pod's name is no label, by option, is named by its address.
//     CoreDNS makes a target of it that it does not answer.
//   - The service's publishNotReadyAddresses counts, whatever its slices say.
//   - PTR records lead to names that exist: an endpoint's service must be held and
//     not be an alias.
//   - The names of endpoints are made from the canonical form of their addresses,
//     CoreDNS's from the form the object has.
//   - An endpoint that a slice lists twice counts once for the weights.
//   - NS is ns.dns.<domain> always. CoreDNS names its own service if it finds that.
//   - A ClusterIP service whose address is not known yet has no data. CoreDNS makes
//     an alias of the empty name.
//   - Names may have a TTL of their own.
//   - An address has 32 PTR records at most.
//
// # Readers and writers
//
// Objects become immutable records. A service and the slices that name it are one
// node, which is published with one store, so an answer is made from one state and
// a reader that saw a new one never sees an older one of that name again. Indexes
// are tables of numbers, which hold no keys; a reader compares the record.
// Whoever keeps answers of others about the cluster is told which a change outdates
// ([Store.Observe], [Owner]), after readers can see it.
package zone
