// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Transfer returns Records in the model's form.
func (z *Zone) Transfer(now time.Time, emit func(rr dns.RR) error) error {
	var buf []byte
	_, err := z.Records(now, Secondary{}, func(r Record) error {
		buf = append(buf[:0], r.Owner...)
		buf = binary.BigEndian.AppendUint16(buf, r.Type)
		buf = binary.BigEndian.AppendUint16(buf, wire.ClassIN)
		buf = binary.BigEndian.AppendUint32(buf, r.TTL)
		buf = binary.BigEndian.AppendUint16(buf, uint16(len(r.Data)))
		buf = append(buf, r.Data...)
		rr, _, err := dns.UnpackRR(buf, 0)
		if err != nil {
			return err
		}
		return emit(rr)
	})
	return err
}

// Bytes returns what the versions keep in memory.
func (v *Versions) Bytes() int {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	return v.bytes
}

// Given returns how many versions of clients are remembered.
func (v *Versions) Given() int {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	return len(v.given)
}
