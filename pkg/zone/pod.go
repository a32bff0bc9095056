// SPDX-License-Identifier: Apache-2.0

package zone

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

// addrs are the packed addresses of octets each.
func (p *pod) addrs(octets int) string {
	if octets == 4 {
		return p.data[:4*p.n4]
	}
	return p.data[4*p.n4:]
}

// holds tells whether addr is one of the pod's.
func (p *pod) hasAddr(addr []byte) bool {
	for list := p.addrs(len(addr)); list != ""; list = list[len(addr):] {
		if list[:len(addr)] == string(addr) {
			return true
		}
	}
	return false
}
