// SPDX-License-Identifier: Apache-2.0

package wire

// AddressRun finds the first set of addresses in the answer section: a run of two or more A or AAAA records of one owner
// and TTL. It gives the place of its first record in Records and how many there are, 0 and 0 if there is none. A set like
// that may be given in any order.
func (m *Message) AddressRun() (first, count int) {
	for first < len(m.Records) && m.Records[first].Section == Answer {
		count = 1
		if a := m.Records[first]; a.Type == TypeA || a.Type == TypeAAAA {
			for first+count < len(m.Records) && m.sameSet(a, m.Records[first+count]) {
				count++
			}
		}
		if count > 1 {
			return first, count
		}
		first++
	}
	return 0, 0
}

func (m *Message) sameSet(a, b Record) bool {
	return b.Section == a.Section && b.Type == a.Type && b.Class == a.Class && b.Size == a.Size &&
		m.RecordTTL(a) == m.RecordTTL(b) && m.SameOwner(a, b)
}
