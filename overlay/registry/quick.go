package registry

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strconv"
)

// decodeQuickly decodes an endpoint as encode writes it, in a fifth of the time that package json needs: a host that
// joins reads up to 100,000 of them. It returns false for every other text, which package json has to read.
func decodeQuickly(text []byte, e *Endpoint) bool {
	s := scanner{text}
	ok := s.word(`{"version":`) && s.number(&e.Version) &&
		s.word(`,"network":`) && s.text(&e.Network) &&
		s.word(`,"host":`) && s.text(&e.Host) &&
		s.word(`,"id":`) && s.text(&e.ID) &&
		s.word(`,"container":`) && s.text(&e.Container) &&
		s.word(`,"names":`) && s.list(func() bool {
		var name string
		ok := s.text(&name)
		e.Names = append(e.Names, name)
		return ok
	}) && s.word(`,"addresses":`) && s.list(func() bool {
		var a netip.Addr
		ok := s.addr(&a)
		e.Addresses = append(e.Addresses, a)
		return ok
	})
	if ok && s.word(`,"labels":`) {
		ok = s.labels(e)
	}
	if rest, has := bytes.CutPrefix(s.left, []byte(`,"ports":`)); ok && has && len(rest) > 0 {
		return json.Unmarshal(rest[:len(rest)-1], &e.Ports) == nil && rest[len(rest)-1] == '}'
	}
	return ok && string(s.left) == "}"
}

// scanner reads JSON without white space and escapes. Its methods report whether the next token is what they read.
type scanner struct{ left []byte }

func (s *scanner) word(w string) bool {
	if len(s.left) < len(w) || string(s.left[:len(w)]) != w {
		return false
	}
	s.left = s.left[len(w):]
	return true
}

func (s *scanner) number(n *int) bool {
	i := 0
	for i < len(s.left) && s.left[i] >= '0' && s.left[i] <= '9' {
		i++
	}
	v, err := strconv.Atoi(string(s.left[:i]))
	if err != nil || i > 1 && s.left[0] == '0' {
		return false
	}
	*n, s.left = v, s.left[i:]
	return true
}

// raw returns the bytes of a string that needs no decoding.
func (s *scanner) raw() ([]byte, bool) {
	if len(s.left) == 0 || s.left[0] != '"' {
		return nil, false
	}
	for i, b := range s.left[1:] {
		switch {
		case b == '"':
			text := s.left[1 : 1+i]
			s.left = s.left[i+2:]
			return text, true
		case b < ' ' || b == '\\' || b > '~':
			return nil, false
		}
	}
	return nil, false
}

func (s *scanner) text(t *string) bool {
	b, ok := s.raw()
	*t = string(b)
	return ok
}

func (s *scanner) addr(a *netip.Addr) bool {
	b, ok := s.raw()
	return ok && a.UnmarshalText(b) == nil
}

// list calls one for each element of a list that is not empty.
func (s *scanner) list(one func() bool) bool {
	if !s.word("[") {
		return false
	}
	for one() {
		switch {
		case s.word("]"):
			return true
		case !s.word(","):
			return false
		}
	}
	return false
}

func (s *scanner) labels(e *Endpoint) bool {
	if !s.word("{") {
		return false
	}
	e.Labels = map[string]string{}
	for {
		var k, v string
		if !s.text(&k) || !s.word(":") || !s.text(&v) {
			return false
		}
		e.Labels[k] = v
		switch {
		case s.word("}"):
			return true
		case !s.word(","):
			return false
		}
	}
}
