// SPDX-License-Identifier: Apache-2.0

// Package zone answers the names of a Kubernetes cluster from compact records of its objects.
//
// A [Store] holds the packed objects; pkg/watch fills it. A [Zone] answers from a store according to its configuration, as
// bytes, without locks or allocations. It follows the Kubernetes DNS specification 1.1.0 and, where that is silent, the
// kubernetes plugin of CoreDNS 1.14.7.
//
// # What is answered
//
// Below the cluster domain:
//
//	<domain>                                SOA; NS ns.dns.<domain>, with its addresses
//	ns.dns                                  A, AAAA: the nameservers of the configuration
//	dns-version                             TXT "1.1.0"
//	dns, svc, pod                           no records, but they exist
//	<ns>.svc, <ns>.pod                      nothing; they exist if the namespace is declared or a service is in it
//	<svc>.<ns>.svc            ClusterIP     A, AAAA: its addresses; SRV: its ports
//	                          headless      A, AAAA: its published endpoints; SRV: their ports; without such an endpoint it does not exist
//	                          ExternalName  CNAME, for every type
//	_<port>._<proto>.<svc>                  SRV: the ports with that name; A, AAAA: as at the service. The underscores may be missing
//	_<proto>.<svc>                          nothing; it exists if there is a named port of the protocol
//	<endpoint>.<svc>                        A, AAAA, SRV of the endpoint: its hostname, else by option its pod's name, else its address
//	<zone>.pin._zone.<svc>    headless      as at the service, with the endpoints of the topology zone only; nothing if there are none
//	<zone>.prefer._zone.<svc> headless      the same, but all endpoints if there are none
//	_zone, pin._zone, prefer._zone          no records, but they exist below every headless service
//	<address>.<ns>.pod                      A or AAAA: insecure if the namespace exists, verified if a pod in it has the address
//
// Addresses in a label have dashes for dots and colons. The label of an endpoint ends in 0 where it would end in a dash.
// The label of a pod may use any spelling of the address.
//
// A published endpoint is ready, or its service publishes all endpoints. Each address is given once, even if several
// slices have it. Sets rotate with every answer; endpoints of the node's topology zone come first. SRV records share a
// weight of 100 among the endpoints and ports of the name, and have a weight of at least 1. The targets' addresses are in
// the additional section.
//
// Reverse names of complete addresses have PTR records: to the service with the address, or else to every published
// endpoint with it whose service is in the store, those with a hostname first. All of in-addr.arpa and ip6.arpa is looked
// up. An unknown reverse name is denied if it is in a reverse zone of the cluster; otherwise it is not in the zone. With a
// cluster set the denial needs the set's services and slices too. Other names in these zones exist without records, unless
// there is a fallback: then they are not in the zone.
//
// A chain of aliases within the zone is followed for at most eight CNAME records. The verdict for a chain that leaves the
// zone is [Alias]. A name whose chain is longer or endless has no data: with part of the chain, a client would only follow
// it further. An ExternalName that is an IP address or an invalid name cannot be a CNAME record, and its service does not
// exist here.
//
// Objects whose name cannot be a label are ignored. A hostname, port name or topology zone that cannot be a label counts
// as unset. A name of more than 255 bytes cannot be a target.
//
// An answer is built for the size that its client accepts. Its cost depends on the records sent, not on the records
// stored. A larger set is truncated, with TC and another part for each rotation. The same happens if an answer spends its
// budget of steps on entries that it does not give: unready, duplicate, or of another topology zone. An address has at
// most 32 PTR records, others with each rotation. A service or slice has at most 4,096 ports, a slice at most 127 topology
// zones.
//
// Names that the configuration excludes, and all names below them, are not in the zone, neither as a question nor as the
// target of an alias.
//
// # Cluster sets
//
// The zone of a cluster set has the names of imported services (KEP-1645, multicluster DNS specification 1.0.0). They are those
// above, but:
//
//	dns-version                     TXT "1.0.0"
//	<ns>.svc                        nothing; it exists if the namespace exists in the cluster or an import is in it
//	<endpoint>.<cluster>.<svc>      headless only: A, AAAA, SRV of the endpoint
//	<cluster>.<svc>                 headless only: nothing; it exists if an endpoint of the cluster is published
//	_<port>._<proto>.<svc>          one of the underscores is needed
//	<endpoint>.<svc>, <zone>...     none
//
// # Stale and incomplete data
//
// The store tracks the freshness of each kind of object. A kind is unsynced until its first list is complete, stale if it
// was not confirmed within StaleAfter, and unwatched if it is not expected at all. A kind restored from a dump was complete
// in another process: until its first list is complete here, it is stale, whatever its age, but not unsynced.
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
// If the fallback has no answer, [Zone.AnswerStale] gives the answer that stale data would give without a fallback.
//
// A name is denied by its shape if no object could have it: three or more labels left of a service that are not zonal, two
// labels of which the second is no protocol, or an impossible address. Most names that a search path makes of an external name are.
//
// Names of an unwatched kind are denied only without a fallback: endpoints if no slices are watched, endpoints of other
// services if only slices of headless services are watched, and names outside of svc and pod, which a central resolver may
// have. If slices are watched by the label of headless services, all names of a headless service without a selector are left
// to the fallback: users make its slices, mostly without the label. Without a fallback they are not denied, unless a slice
// with the label has a published endpoint.
//
// # Differences from CoreDNS
//
//   - dns, dns-version by other types than TXT, _<proto>.<svc>, _zone.<svc> and the directives below it exist, since they
//     have data or names below them (RFC 8020). CoreDNS says NXDOMAIN.
//   - TXT at names that exist without data, such as svc: NODATA. CoreDNS says NXDOMAIN for this one type.
//   - Other types than PTR at a reverse name that exists: NODATA. CoreDNS says NXDOMAIN.
//   - SOA at names that do not exist: NXDOMAIN. CoreDNS says NODATA for this one type.
//   - in-addr.arpa, ip6.arpa and names in them of less than an address are not in the zone: a node is not authoritative
//     for them. CoreDNS is configured with the whole trees.
//   - The SOA record for reverse names has the owner in-addr.arpa or ip6.arpa, as in CoreDNS, but its RDATA names ns.dns and
//     hostmaster of the cluster domain, which exist.
//   - An alias has a CNAME record for every query type (RFC 1034 section 3.6.2). CoreDNS has no data for TXT, SRV, MX and types
//     it does not know.
//   - An alias for a name of the zone without data, or that does not exist, is given with that name's rcode (RFC 6604). CoreDNS
//     leaves the alias out and says NODATA. Chains end after eight aliases, in CoreDNS after eleven.
//   - Labels left of a pod's name are denied. CoreDNS ignores them. A pod's name has no SRV record; in CoreDNS it has one with
//     port 0.
//   - Verified pods: all addresses of a pod and all spellings of them. CoreDNS knows the first address in one spelling.
//   - A bare underscore is no wildcard for a port or protocol.
//   - With PodNames, an endpoint whose pod's name is no label is named by its address. CoreDNS makes a target of the pod's name
//     that it does not answer.
//   - The service's publishNotReadyAddresses counts, whatever its slices say.
//   - PTR records lead to names that exist: an endpoint's service must be in the store and not be an alias.
//   - Names of endpoints have the canonical form of the address, in CoreDNS the form that the object has.
//   - An endpoint that a slice lists twice counts once for the weights.
//   - NS is ns.dns.<domain> always. CoreDNS names its own service if it finds that.
//   - A ClusterIP service whose address is not known yet has no data. CoreDNS makes an alias of the empty name.
//   - A service may set the TTL of its names.
//   - An address has 32 PTR records at most.
//
// # External zones
//
// A zone with External has names of services by their external addresses, as CoreDNS's plugin k8s_external:
//
//	<domain>                 SOA; NS ns1.dns.<domain>, with its addresses
//	ns1.dns                  A, AAAA: the nameservers of the configuration
//	dns, <ns>                nothing; a namespace exists as in the cluster domain
//	<svc>.<ns>               A, AAAA: the external addresses; SRV: the ports. Without an address: CNAME, the host name
//	_<port>._<proto>.<svc>   as at the service; of a host name only SRV
//	_<proto>.<svc>           nothing; it exists if there is a named port of the protocol
//	<endpoint>.<svc>         with Headless, of a headless service without external addresses; its other names are then as in svc, but not zonal
//
// An external address has PTR records to the services in the first external zone, unless the cluster has the address. Aliases
// are followed within all zones of a process. With Fallthrough, a name that does not exist is not in the zone, unless
// it is below dns.
//
// Differences from CoreDNS:
//
//   - A name below a service is a port or an endpoint. CoreDNS gives any such name the service's addresses.
//   - A service without an external name has no endpoints there. CoreDNS answers them with headless, and denies the name above them.
//   - Other types at a reverse name, and _<proto>.<svc>: as in the cluster domain.
//   - An alias has a CNAME record for every query type, and no address or other alias beside it: the first of several host
//     names counts, and none if there is an address. CoreDNS gives all of them, and SRV records at the name too.
//   - SRV records of a host name come without its addresses.
//   - The name server has the addresses of the configuration. CoreDNS gives those of its own service.
//   - Reverse names need no configuration. CoreDNS answers them if its zones include reverse zones, before the cluster's.
//   - TTLs are the zone's or the service's. CoreDNS gives CNAME and SRV records the TTL of the cluster domain. The TTL
//     of SOA records here is at most 300 s.
//   - An address that is there twice counts once for the weights. A service has at most 1,024 external addresses of a family.
//
// # Concurrency
//
// Objects become immutable records. A service and its slices form one node, which is published with one atomic store. So
// an answer uses one state, and a reader that saw a new state never sees an older one of that name. Indexes are hash tables
// of record numbers without keys; a reader compares the record. A cache of other servers' answers about the cluster can
// follow the changes ([Observer], [Owner]).
package zone
