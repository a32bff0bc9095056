// SPDX-License-Identifier: Apache-2.0

package zone

import "github.com/nodecache/node-cache/pkg/wire"

// Labels of zonal names: <topology zone>.<directive>._zone.<service>.
const (
	labelZone   = "_zone"
	labelPin    = "pin"    // directive: only endpoints of the zone
	labelPrefer = "prefer" // directive: endpoints of the zone, or all if it has none
)

// A serviceName is a name at or below that of a service.
type serviceName struct {
	*reply
	n    *node // node of the service; its svc is not nil
	left int   // number of labels left of the service's name
}

// resolve answers the name, or returns the target if it is an alias.
func (s serviceName) resolve() (alias string, res Result) {
	if s.n.partial {
		return "", s.answerUnknown()
	}
	if s.ttl = s.z.ttl; s.n.svc.ttl >= 0 {
		s.ttl = uint32(s.n.svc.ttl)
	}
	if s.z.cfg.External {
		return s.external()
	}
	switch s.n.svc.typ {
	case ExternalName:
		switch alias = s.n.svc.inside(); {
		case s.left > 0:
			return "", s.nxdomain(ImpossibleName, needsServices)
		case alias == "":
			return "", s.nxdomain(BadExternalName, needsServices)
		}
		return alias, res
	case Unselected:
		if s.lacksSlices() {
			return "", s.answerUnknown()
		}
		return "", s.headless()
	case Headless:
		return "", s.headless()
	case ClusterIP:
	}
	return "", s.clusterIP()
}

// lacksSlices reports whether the store may lack slices of the headless service.
func (s serviceName) lacksSlices() bool {
	return s.n.svc.typ == Unselected && s.z.cfg.LabelledSlices && (s.z.cfg.HasFallback() || !s.n.hasPublished())
}

// external answers a name in an external zone, or returns the target if it is an alias.
func (s serviceName) external() (alias string, res Result) {
	e := s.n.svc.outside()
	switch {
	case e.exists():
	case !s.n.svc.endpointsIn(s.z):
		return "", s.nxdomain(NoExternal, needsServices)
	case s.lacksSlices():
		return "", s.answerUnknown()
	default:
		return "", s.headless()
	}
	filter, ok := s.portFilter()
	switch {
	case !ok:
		return "", s.belowPorts(e.ports())
	case filter.count(e.ports()) == 0:
		return "", s.nxdomain(NoPort, needsServices)
	case e.alias != "" && s.left == 0:
		return e.alias, res
	}
	return "", s.serviceSet(&e.service, e.alias, &filter)
}

// belowPorts answers a name one label below a service without endpoints. Such a name exists if names of ports are below it.
func (s serviceName) belowPorts(ports portList) Result {
	if p, ok := protocolOf(s.label(0)); ok && ports.protocols()>>p&1 != 0 {
		return s.nodata(needsNothing)
	}
	return s.nxdomain(s.missing(), needsServices)
}

// missing returns what a name one label below a service lacks: a protocol, or else an endpoint.
func (s serviceName) missing() Denial {
	if _, ok := protocolOf(s.label(0)); ok {
		return NoPort
	}
	return NoEndpoint
}

// clusterIP answers a name of a ClusterIP service.
func (s serviceName) clusterIP() Result {
	if s.z.cfg.IgnoreEmpty && !s.n.hasPublished() && s.freshnessOf(needsSlices) != unwatched {
		return s.nxdomain(NoReadyEndpoint, needsEndpoints)
	}
	filter, ok := s.portFilter()
	switch {
	case s.left == 1:
		return s.belowClusterIP()
	case !ok, s.namesCluster():
		return s.nxdomain(ImpossibleName, needsServices) // a zonal name, or <endpoint>.<cluster>.<svc>
	case s.left == 2 && filter.count(s.n.svc.ports()) == 0:
		return s.nxdomain(NoPort, needsServices)
	}
	return s.serviceSet(s.n.svc, "", &filter)
}

// serviceSet answers with the addresses of the service, or with SRV records of its ports, whose target is host if that is not empty.
func (s serviceName) serviceSet(svc *service, host string, filter *portFilter) Result {
	before := s.answer
	if addrLen := addrLenOf(s.q.Type); addrLen != 0 {
		s.appendRotated(s.at, svc.addrs(addrLen), addrLen, s.ttl)
	} else if s.q.Type == wire.TypeSRV {
		s.appendServiceSRV(svc, host, filter)
	}
	if s.answer == before && !s.truncated() {
		return s.nodata(needsNothing)
	}
	return s.positive(needsServices)
}

// belowClusterIP answers a name one label below a ClusterIP service: an endpoint or a protocol. The store may lack the slices.
func (s serviceName) belowClusterIP() Result {
	if !s.z.inSet() {
		if res, ok := s.endpoint(); ok {
			return res
		}
	}
	if p, ok := protocolOf(s.label(0)); ok && s.n.svc.ports().protocols()>>p&1 != 0 {
		return s.nodata(needsNothing)
	}
	switch {
	case s.z.inSet():
		return s.nxdomain(s.missing(), needsServices)
	case !s.z.cfg.AllSlices:
		return s.denyUnlessFallback(s.missing(), needsServices)
	}
	return s.nxdomain(s.missing(), needsEndpoints)
}

// endpoint answers the name of a published endpoint in the store. It returns false if none has the name.
func (s serviceName) endpoint() (Result, bool) {
	sel := newSelection(s.reply, s.n).withLabel(s.label(0))
	if s.z.inSet() {
		sel.cluster = s.labelRange(1, 2)
	}
	if !sel.notEmpty() {
		return Result{}, false
	}
	return s.set(&sel), true
}

// headless answers a name of a headless service.
func (s serviceName) headless() Result {
	switch {
	case s.namesCluster():
		if res, ok := s.endpoint(); ok {
			return res
		}
		return s.nxdomain(NoEndpoint, needsEndpoints)
	case s.left == 1:
		return s.belowHeadless()
	}
	filter, ok := s.portFilter()
	if !ok {
		return s.zonal()
	}
	sel := newSelection(s.reply, s.n)
	sel.ports = filter
	if !s.complete(needsSlices) || !sel.notEmpty() { // an incomplete or empty set is not an answer
		if s.left > 0 && s.n.hasPublished() {
			return s.nxdomain(NoPort, needsEndpoints)
		}
		return s.nxdomain(NoReadyEndpoint, needsEndpoints)
	}
	return s.set(&sel)
}

// belowHeadless answers a name one label below a headless service.
func (s serviceName) belowHeadless() Result {
	if s.z.inSet() {
		if s.clusterNode() {
			return s.nodata(needsNothing)
		}
	} else if res, ok := s.endpoint(); ok {
		return res
	}
	if s.zonalNode() {
		return s.zonalEmpty()
	}
	if p, ok := protocolOf(s.label(0)); ok && s.n.hasProtocol(p) {
		return s.nodata(needsNothing)
	}
	return s.nxdomain(s.missing(), needsEndpoints)
}

// zonal answers a zonal name of a headless service, or a name between that and the service, such as pin._zone.<service>.
func (s serviceName) zonal() Result {
	if s.left == 2 {
		return s.zonalEmpty()
	}
	if !s.complete(needsSlices) {
		return s.nxdomain(NoReadyEndpoint, needsEndpoints)
	}
	sel := newSelection(s.reply, s.n)
	sel.zone = s.labelRange(0, s.left-2)
	if !sel.notEmpty() && string(s.label(s.left-2)) == labelPrefer {
		sel.zone = nil
	}
	if !sel.notEmpty() {
		return s.deny(NoReadyEndpoint, needsEndpoints, wire.RcodeSuccess, wire.EDEStaleAnswer)
	}
	return s.set(&sel)
}

// zonalEmpty answers a name above zonal names. It exists without data below every headless service if slices are watched.
func (s serviceName) zonalEmpty() Result {
	if s.freshnessOf(needsSlices) == unwatched {
		return s.nxdomain(NoReadyEndpoint, needsEndpoints)
	}
	return s.nodata(needsNothing)
}

// set answers with the selected endpoints, of which there is at least one.
func (s serviceName) set(sel *selection) Result {
	before := s.answer
	addrLen := addrLenOf(s.q.Type)
	switch {
	case addrLen != 0:
		sel.appendAddrs(addrLen)
	case s.q.Type == wire.TypeSRV:
		sel.appendSRV(s.left)
	default:
		return s.nodata(needsNothing)
	}
	if s.answer == before && !s.truncated() {
		return s.nodata(needsEndpoints)
	}
	return s.positive(needsEndpoints)
}

// clusterNode reports whether the name is <cluster>.<service> of a headless service with a published endpoint in that cluster.
func (s serviceName) clusterNode() bool {
	sel := newSelection(s.reply, s.n)
	sel.cluster = s.labelRange(0, 1)
	return sel.notEmpty()
}

// appendServiceSRV appends one SRV record per port number of a service, and its addresses. The target is the host, if
// there is one, or the service's name.
func (s serviceName) appendServiceSRV(svc *service, host string, filter *portFilter) {
	at, addrs := int(s.offsets[s.left]), int(svc.n4+svc.n6)
	target := s.name[at:]
	var buf [wire.MaxName]byte
	if host != "" {
		target, addrs = buf[:copy(buf[:], host)], 1
	}
	if addrs == 0 {
		return
	}
	weight := weightOf(max(1, filter.count(svc.ports())*addrs))
	last := uint16(0)
	for l := svc.ports(); l != ""; l = l.rest() {
		if l.number() == last || !filter.match(l) {
			continue
		}
		if s.full(2 + fixedLen + srvFixed + len(target)) {
			return
		}
		last = l.number()
		s.appendSRV(s.at, s.ttl, weight, last, len(target))
		s.dst = append(s.dst, target...)
		s.answer++
	}
	if last == 0 {
		return
	}
	for _, addrLen := range addrLens() {
		for list := svc.addrs(addrLen); list != "" && len(s.dst)-s.start+addressRecordLen(addrLen) <= s.maxSize; list = list[addrLen:] {
			s.appendAddress(s.at+at, list[:addrLen], s.ttl)
			s.extra++
		}
	}
}

// possible reports whether any service could have a name like this below it.
func (s serviceName) possible() bool {
	switch s.left {
	case 0, 1:
		return true
	case 2:
		_, ok := protocolOf(s.label(1))
		return ok || s.namesCluster() || s.zonalNode()
	}
	return s.zonalNode()
}

// zonalNode reports whether the labels left of the service are those of a zonal name or of a name above one.
func (s serviceName) zonalNode() bool {
	if s.left == 0 || s.z.cfg.External || s.z.inSet() || string(s.label(s.left-1)) != labelZone {
		return false
	}
	if s.left == 1 {
		return true
	}
	directive := string(s.label(s.left - 2))
	return directive == labelPin || directive == labelPrefer
}

// namesCluster reports whether the labels left of the service are those of an endpoint and its cluster. With an underscore
// they are those of a port and its protocol.
func (s serviceName) namesCluster() bool {
	return s.z.inSet() && s.left == 2 && s.label(0)[0] != '_' && s.label(1)[0] != '_'
}

// portFilter returns the filter for the name: all ports, or those of _port._proto. It reports false for other names.
func (s serviceName) portFilter() (portFilter, bool) {
	switch s.left {
	case 0:
		return portFilter{}, true
	case 2:
		protocol, ok := protocolOf(s.label(1))
		return portFilter{byName: true, name: portName(s.label(0)), protocol: protocol}, ok
	}
	return portFilter{}, false
}
