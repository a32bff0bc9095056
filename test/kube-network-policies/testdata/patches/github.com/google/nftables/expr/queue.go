// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"encoding/binary"
	"errors"

	"github.com/google/nftables/xt"
)

// QueueFlag is a flag of a [Queue].
type QueueFlag uint16

// QueueFlagBypass has packets pass while no process reads the queue.
const QueueFlagBypass QueueFlag = 1

// Queue has packets wait for the verdict of a process. Here it is the target NFQUEUE of xtables: not every kernel has nftables' own expression.
type Queue struct {
	Num, Total uint16
	Flag       QueueFlag
}

func (e *Queue) marshal(fam byte) ([]byte, error) {
	const revision, size = 3, 8 // of struct xt_NFQ_info_v3: three numbers, and what aligns it
	info := make(xt.Unknown, size)
	for i, field := range []uint16{e.Num, max(e.Total, 1), uint16(e.Flag)} {
		binary.NativeEndian.PutUint16(info[2*i:], field)
	}
	return (&Target{Name: "NFQUEUE", Rev: revision, Info: &info}).marshal(fam)
}

func (e *Queue) marshalData(byte) ([]byte, error) { return nil, errors.ErrUnsupported }

func (e *Queue) unmarshal(byte, []byte) error { return errors.ErrUnsupported }
