//! `strftime_now`: the date of today in the template's format, in UTC.

use std::{
    fmt::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const DAY_SECONDS: i64 = 86_400;

/// A moment as a calendar shows it.
struct Moment {
    year: i64,
    /// 1 to 12.
    month: usize,
    day: i64,
    /// 0 is Sunday.
    weekday: usize,
    /// 1 is the first of January.
    day_of_year: i64,
    /// Seconds since midnight.
    seconds: i64,
}

/// The present in a format of `strftime`.
pub(super) fn format_now(format: &str) -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    format_at(format, i64::try_from(seconds).unwrap_or(0))
}

/// Days to a date: H. Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn moment(unix_seconds: i64) -> Moment {
    let days = unix_seconds.div_euclid(DAY_SECONDS);
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_from_march + 2) / 153;
    let day = day_from_march - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let january_and_february = 59 + i64::from(leap);
    let day_of_year = if month > 2 {
        day_from_march + january_and_february + 1
    } else {
        day_from_march - 305
    };
    Moment {
        year,
        month: usize::try_from(month).unwrap_or(1),
        day,
        weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0),
        day_of_year,
        seconds: unix_seconds.rem_euclid(DAY_SECONDS),
    }
}

fn format_at(format: &str, unix_seconds: i64) -> String {
    let moment = moment(unix_seconds);
    let mut result = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            result.push(character);
            continue;
        }
        match characters.next() {
            Some('-') => {
                let mut field = String::new();
                push_field(&mut field, &moment, characters.next());
                let bare = field.trim_start_matches(['0', ' ']);
                result.push_str(if bare.is_empty() { "0" } else { bare });
            }
            other => push_field(&mut result, &moment, other),
        }
    }
    result
}

fn push_field(out: &mut String, moment: &Moment, field: Option<char>) {
    let (hour, minute, second) = (moment.seconds / 3600, moment.seconds / 60 % 60, moment.seconds % 60);
    let (month, weekday) = (MONTHS[moment.month - 1], WEEKDAYS[moment.weekday]);
    let half = if hour % 12 == 0 { 12 } else { hour % 12 };
    let written = match field {
        Some('Y') => write!(out, "{}", moment.year),
        Some('y') => write!(out, "{:02}", moment.year.rem_euclid(100)),
        Some('m') => write!(out, "{:02}", moment.month),
        Some('d') => write!(out, "{:02}", moment.day),
        Some('e') => write!(out, "{:2}", moment.day),
        Some('j') => write!(out, "{:03}", moment.day_of_year),
        Some('B') => write!(out, "{month}"),
        Some('b' | 'h') => write!(out, "{}", &month[..3]),
        Some('A') => write!(out, "{weekday}"),
        Some('a') => write!(out, "{}", &weekday[..3]),
        Some('w') => write!(out, "{}", moment.weekday),
        Some('H') => write!(out, "{hour:02}"),
        Some('I') => write!(out, "{half:02}"),
        Some('M') => write!(out, "{minute:02}"),
        Some('S') => write!(out, "{second:02}"),
        Some('f') => write!(out, "000000"),
        Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
        Some('Z') => write!(out, "UTC"),
        Some('z') => write!(out, "+0000"),
        Some('F') => write!(out, "{}-{:02}-{:02}", moment.year, moment.month, moment.day),
        Some('D' | 'x') => write!(
            out,
            "{:02}/{:02}/{:02}",
            moment.month,
            moment.day,
            moment.year.rem_euclid(100)
        ),
        Some('T' | 'X') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
        Some('R') => write!(out, "{hour:02}:{minute:02}"),
        Some('%') => write!(out, "%"),
        Some(other) => write!(out, "%{other}"),
        None => write!(out, "%"),
    };
    // Writing to a string does not fail.
    let _ = written;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let cases = [
            (0, "1970-01-01 Thu 001 00:00:00 12 AM"),
            (951_782_400, "2000-02-29 Tue 060 00:00:00 12 AM"),
            (978_264_061, "2000-12-31 Sun 366 12:01:01 12 PM"),
            (1_735_689_599, "2024-12-31 Tue 366 23:59:59 11 PM"),
            (1_740_787_200, "2025-03-01 Sat 060 00:00:00 12 AM"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(format_at("%Y-%m-%d %a %j %H:%M:%S %I %p", seconds), expected);
        }
        assert_eq!(
            format_at("%d %b %Y, %-d %B %y %e|%%%q", 1_740_787_200),
            "01 Mar 2025, 1 March 25  1|%%q"
        );
    }
}
