use postrider_store::Reservation;

fn twice(reservation: &Reservation) -> (Reservation, Reservation) {
    (<Reservation as Clone>::clone(reservation), *reservation) //~ E0277
}
