// SPDX-License-Identifier: Apache-2.0

package zone

func (z *Zone) prepareSOA() {}
