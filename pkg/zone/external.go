// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"fmt"

	"github.com/nodecache/node-cache/pkg/wire"
)

// depthExternal is the number of labels of a service's name left of the domain of an external zone.
const depthExternal = 2

// An external is a service as clients outside of the cluster reach it. The zero value has no name.
type external struct {
	service        // its external addresses, and its ports
	alias   string // host name in canonical wire form; empty: it has addresses
}

// packExternal appends the external addresses, or else the host name, with the ports to the record. Without a usable
// address or name, it appends nothing. In order: the name with its length, both counts of addresses, addresses, ports.
func (s *service) packExternal(from *Service) {
	packed := packService(Service{Type: ClusterIP, Addrs: from.ExternalAddrs, Ports: from.Ports})
	alias := ""
	if packed.n4+packed.n6 == 0 {
		if alias = aliasTarget(from.ExternalHost); alias == "" {
			return
		}
	}
	data := append([]byte{byte(len(alias))}, alias...)
	data = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(data, packed.n4), packed.n6)
	s.data += string(data) + packed.data
	s.external = uint32(len(data) + len(packed.data))
}

// CheckExternal returns why not all external names of the service are served; nil: they are.
func (s *Service) CheckExternal() error {
	v4, v6 := packAddrs(s.ExternalAddrs)
	n4, n6 := len(v4)/4, len(v6)/16
	switch {
	case max(n4, n6) > maxAddrs:
		return fmt.Errorf("external addresses: %d of a family, at most %d are served", max(n4, n6), maxAddrs)
	case n4+n6 == 0 && s.ExternalHost != "" && aliasTarget(s.ExternalHost) == "":
		return fmt.Errorf("external host name: %.80q: %w", s.ExternalHost, wire.ErrName)
	}
	return nil
}

// outside returns the service as it is seen from outside of the cluster.
func (s *service) outside() (e external) {
	if s == nil || s.external == 0 {
		return e
	}
	data := s.data[len(s.data)-int(s.external):]
	at := 1 + int(data[0])
	e.typ, e.alias = ClusterIP, data[1:at]
	e.n4, e.n6, e.data = u16(data, at), u16(data, at+2), data[at+4:]
	return e
}

// exists reports whether the service has a name outside of the cluster.
func (e *external) exists() bool { return e.alias != "" || e.n4+e.n6 > 0 }

// externalName answers a name of an external zone, or returns the target if it is an alias.
func (r *reply) externalName() (alias string, res Result) {
	space := r.labelRange(r.labels-1, r.labels)
	if string(space) == labelsDNS {
		return "", r.serverName()
	}
	if ok, on := r.z.exposes(space); !ok {
		return "", r.nxdomain(on)
	}
	if r.labels < depthExternal {
		return "", r.namespaceName()
	}
	left := r.labels - depthExternal
	if _, ok := r.portFilter(left); !ok && left != 1 {
		return "", r.nxdomain(needsNothing)
	}
	n, _ := r.z.cfg.Store.findNode(r.labelRange(left, r.labels))
	if n == nil || n.svc == nil {
		return "", r.nxdomain(needsServices)
	}
	return r.service(n)
}

// serverName answers dns and the names below it, none of which is left to a route.
func (r *reply) serverName() Result {
	switch string(r.labelRange(0, r.labels)) {
	case labelsDNS:
		return r.nodata(needsNothing)
	case r.z.server:
		return r.serverAddrs()
	}
	return r.deny(needsNothing, wire.RcodeNXDomain, wire.EDENone)
}

// externalService answers a name at or below the service of the node, or returns the target if it is an alias.
func (r *reply) externalService(n *node) (alias string, res Result) {
	left := r.labels - depthExternal
	e := n.svc.outside()
	switch {
	case e.exists():
	case !n.svc.endpointsIn(r.z):
		return "", r.nxdomain(needsServices)
	case r.lacksSlices(n):
		return "", r.answerUnknown()
	default:
		return "", r.headless(n, left)
	}
	filter, ok := r.portFilter(left)
	switch {
	case !ok:
		return "", r.belowPorts(e.ports())
	case filter.count(e.ports()) == 0:
		return "", r.nxdomain(needsServices)
	case e.alias != "" && left == 0:
		return e.alias, res
	}
	return "", r.serviceSet(&e.service, e.alias, left, &filter)
}

// endpointsIn reports whether the external zone has the endpoints of the service.
func (s *service) endpointsIn(z *Zone) bool {
	e := s.outside()
	return z.cfg.Headless && (s.typ == Headless || s.typ == Unselected) && !e.exists()
}

// belowPorts answers a name one label below a service without endpoints: it exists above the names of ports.
func (r *reply) belowPorts(ports portList) Result {
	if p, ok := protocolOf(r.label(0)); ok && ports.protocols()>>p&1 != 0 {
		return r.nodata(needsNothing)
	}
	return r.nxdomain(needsServices)
}

// appendExternalPTRs appends a PTR record for every service with the external address, up to maxPTRs, others with each
// rotation.
func (r *reply) appendExternalPTRs(addr []byte) {
	s := r.z.cfg.Store
	chain, _ := newCandidateChain(&s.nodesByExternal, s.hash(addr), r.rotation)
	for id, ok := chain.next(); ok; id, ok = chain.next() {
		if !r.spend(stepsPTR) {
			r.endWalk()
			return
		}
		n := s.nodes.load(id)
		if n == nil || !r.z.exposesNode(n) {
			continue
		}
		if e := n.svc.outside(); !containsAddr(e.addrs(len(addr)), addr) || r.hasPTR(nil, n.key) {
			continue
		}
		if r.answer == maxPTRs {
			r.limited = true
			return
		}
		if !r.appendPTR(nil, n.key) {
			return
		}
	}
}

// externalRecords emits the records of a service with an external address or host name.
func (t *transfer) externalRecords(n *node) (err error) {
	e := n.svc.outside()
	if e.alias == "" {
		err = t.nameRecords(n, n.key)
	} else {
		err = t.answer(n, n.key, wire.TypeCNAME)
	}
	for _, port := range portLabels([]portList{e.ports()}) {
		if err == nil {
			err = t.answer(n, port+n.key, wire.TypeSRV)
		}
	}
	return err
}
