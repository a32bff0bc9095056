// SPDX-License-Identifier: Apache-2.0

package wire

// Sizes of RFC 1035 section 2.3.4, RFC 6891 and RFC 9715.
const (
	HeaderLen  = 12    // bytes of the fixed header
	MaxName    = 255   // bytes of a name in wire form, root label included
	MaxLabel   = 63    // bytes of one label
	MaxMessage = 65535 // bytes of a message over TCP
	MinUDP     = 512   // the size that every client accepts over UDP; smaller EDNS sizes count as this
	SafeUDP    = 1232  // the size that passes unfragmented everywhere: DNS Flag Day 2020, RFC 9715
)

// Record and query types the data path knows by name. All others pass (RFC 3597).
const (
	TypeA     uint16 = 1
	TypeNS    uint16 = 2
	TypeCNAME uint16 = 5
	TypeSOA   uint16 = 6
	TypePTR   uint16 = 12
	TypeHINFO uint16 = 13
	TypeMX    uint16 = 15
	TypeTXT   uint16 = 16
	TypeAAAA  uint16 = 28
	TypeSRV   uint16 = 33
	TypeNAPTR uint16 = 35
	TypeDNAME uint16 = 39
	TypeOPT   uint16 = 41
	TypeDS    uint16 = 43
	TypeRRSIG uint16 = 46
	TypeNSEC  uint16 = 47
	TypeNSEC3 uint16 = 50
	TypeSVCB  uint16 = 64
	TypeHTTPS uint16 = 65
	TypeTSIG  uint16 = 250
	TypeIXFR  uint16 = 251
	TypeAXFR  uint16 = 252
	TypeANY   uint16 = 255
)

// Classes.
const (
	ClassIN uint16 = 1
	ClassCH uint16 = 3
)

// Response codes (RFC 1035 section 4.1.1, RFC 6891 section 9).
const (
	RcodeSuccess  = 0
	RcodeFormErr  = 1
	RcodeServFail = 2
	RcodeNXDomain = 3
	RcodeNotImp   = 4
	RcodeRefused  = 5
	RcodeNotAuth  = 9  // RFC 2136, and RFC 5936 section 2.2.1
	RcodeBadVers  = 16 // needs the OPT record's upper bits
)

// Extended DNS Errors (RFC 8914 section 4).
const (
	EDENone                 = -1 // no such option in the reply
	EDEOther                = 0
	EDEStaleAnswer          = 3
	EDECachedError          = 13
	EDENotReady             = 14
	EDEBlocked              = 15
	EDEStaleNXDomain        = 19
	EDENotAuthoritative     = 20
	EDENoReachableAuthority = 22
	EDENetworkError         = 23
	EDEInvalidData          = 24
)

// EDEText returns the name of an Extended DNS Error above.
func EDEText(code int) string {
	switch code {
	case EDEOther:
		return "Other"
	case EDEStaleAnswer:
		return "Stale Answer"
	case EDECachedError:
		return "Cached Error"
	case EDENotReady:
		return "Not Ready"
	case EDEBlocked:
		return "Blocked"
	case EDEStaleNXDomain:
		return "Stale NXDOMAIN Answer"
	case EDENotAuthoritative:
		return "Not Authoritative"
	case EDENoReachableAuthority:
		return "No Reachable Authority"
	case EDENetworkError:
		return "Network Error"
	case EDEInvalidData:
		return "Invalid Data"
	}
	return ""
}

// OptionExplain is an EDNS option code for local use (RFC 6891 section 9). A client sends it to ask how
// its reply was made: empty, or with the 4 or 16 bytes of an address, to be answered like the client with
// that address. The reply carries the explanation as text.
const OptionExplain = 65305

// EDNS option codes.
const (
	optionSubnet    = 8  // RFC 7871
	optionCookie    = 10 // RFC 7873
	optionKeepalive = 11 // RFC 7828
	optionEDE       = 15 // RFC 8914
)

// Bits of the header's third and fourth byte.
const (
	bitQR = 0x80 // third byte
	bitAA = 0x04
	bitTC = 0x02
	bitRD = 0x01
	bitRA = 0x80 // fourth byte
	bitAD = 0x20
	bitCD = 0x10

	opcodeMask = 0x78 // third byte
	rcodeMask  = 0x0f // fourth byte
)
