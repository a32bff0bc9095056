// SPDX-License-Identifier: Apache-2.0

package zone

// podTree answers a name at or below pod.
func (r *reply) podTree() Result {
	if r.labels == depthTree {
		return r.nodata(needsNothing)
	}
	if r.z.pods == PodsDisabled {
		return r.nxdomain(needsNothing)
	}
	if res, ok := r.hidden(); ok {
		return res
	}
	switch r.labels {
	case depthNamespace:
		return r.namespaceName()
	case depthService:
		return r.podName()
	}
	return r.nxdomain(needsNothing)
}

// podName answers <address>.<namespace>.pod.
func (r *reply) podName() Result {
	var buf [16]byte
	addr := parseDashed(r.label(0), &buf)
	if addr == nil {
		return r.nxdomain(needsNothing)
	}
	if r.z.pods == PodsVerified {
		if !r.z.store.hasPod(r.label(1), addr) {
			return r.nxdomain(needsPods)
		}
	} else if n, _ := r.z.store.findNamespace(r.labelRange(1, 2)); !n.exists() {
		return r.nxdomain(needsNamespaces)
	}
	if addrLenOf(r.q.Type) != len(addr) {
		return r.nodata(needsNothing)
	}
	r.appendAddressBytes(addr)
	if r.z.pods == PodsVerified {
		return r.positive(needsPods)
	}
	return r.positive(needsNamespaces)
}

// appendAddressBytes appends the current name's address record.
func (r *reply) appendAddressBytes(addr []byte) {
	r.appendOwner(r.at)
	r.appendFixed(r.q.Type, r.z.ttl, len(addr))
	r.dst = append(r.dst, addr...)
	r.answer++
}

// hasPod reports whether a pod of the namespace has the address.
func (s *Store) hasPod(namespace, addr []byte) bool {
	hash := s.hash(addr)
	t := s.podsByAddr.table.Load()
	for pos := t.home(hash); ; {
		id, after, ok := t.next(hash, pos)
		if !ok {
			return false
		}
		if p := s.pods.load(id); p != nil && p.namespace == string(namespace) && p.hasAddr(addr) {
			return true
		}
		pos = after
	}
}

// A pod is a Pod object, packed. It is immutable.
type pod struct {
	namespace string // label
	name      string
	data      string // IPv4 addresses, IPv6 addresses
	n4        int
}

func packPod(p Pod) *pod {
	v4, v6 := packAddrs(p.Addrs)
	return &pod{namespace: p.Namespace, name: p.Name, data: string(append(v4, v6...)), n4: len(v4) / 4}
}

// addrs returns the packed addresses of addrLen bytes each.
func (p *pod) addrs(addrLen int) string {
	if addrLen == 4 {
		return p.data[:4*p.n4]
	}
	return p.data[4*p.n4:]
}

// hasAddr reports whether addr is one of the pod's.
func (p *pod) hasAddr(addr []byte) bool {
	for list := p.addrs(len(addr)); list != ""; list = list[len(addr):] {
		if list[:len(addr)] == string(addr) {
			return true
		}
	}
	return false
}
